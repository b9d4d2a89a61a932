//! A DNS server on loopback whose one name's addresses a test changes.
//!
//! It answers A questions for any name with the addresses set last, every other question with none. Truncation,
//! several questions, TCP and the rest of DNS are not here: c-ares asks none of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::net::UdpSocket;

const HEADER_BYTES: usize = 12;
/// Type A, class IN.
const QUESTION_A: [u8; 4] = [0, 1, 0, 1];

/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct DnsServer {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<Ipv4Addr>>>,
    asked: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl DnsServer {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(addresses: &[Ipv4Addr]) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let answer = Arc::new(Mutex::new(addresses.to_vec()));
        let asked = Arc::new(AtomicU64::new(0));
        let (answers, count) = (Arc::clone(&answer), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
                let addresses = answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(reply) = reply(&buffer[..size], &addresses) {
                    count.fetch_add(1, Ordering::SeqCst);
                    // Whoever asked asks again when the reply is lost.
                    let _ = socket.send_to(&reply, from).await;
                }
            }
        });
        Ok(Self { address, answer, asked, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with these addresses from now on.
    pub fn set(&self, addresses: &[Ipv4Addr]) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = addresses.to_vec();
    }

    /// Questions answered so far.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The reply to a query; `None` when it is no query with a question.
fn reply(query: &[u8], addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
    let name_end = HEADER_BYTES + query.get(HEADER_BYTES..)?.iter().position(|byte| *byte == 0)?;
    let question = query.get(HEADER_BYTES..name_end + 5)?;
    let addresses = if question.ends_with(&QUESTION_A) { addresses } else { &[] };
    let mut out = query[..2].to_vec();
    // A response, recursion desired and available, no error; one question, the answers, nothing else.
    out.extend([0x81, 0x80, 0, 1]);
    out.extend(u16::try_from(addresses.len()).ok()?.to_be_bytes());
    out.extend([0; 4]);
    out.extend(question);
    for address in addresses {
        // The name by reference to the question; time to live one second; four bytes.
        out.extend([0xC0, 0x0C, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        out.extend(address.octets());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_addresses_gets_them_and_others_get_none() {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        let found = reply(&query, &[Ipv4Addr::new(127, 0, 0, 2)]).unwrap();
        assert_eq!((&found[..2], found[7], &found[found.len() - 4..]), (&[7, 9][..], 1, &[127, 0, 0, 2][..]));
        query[16] = 28;
        assert_eq!(reply(&query, &[Ipv4Addr::LOCALHOST]).unwrap()[7], 0);
        assert_eq!(reply(&[0; 12], &[]), None);
    }
}
