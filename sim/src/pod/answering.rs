//! One request's way through the pod: its tokens as they come, and its abort when the client leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use super::Shared;
use super::chunks::{ChunkWriter, Usage};
use super::driver::{Command, Delivery};
use crate::answer::Word;

/// The engine stopped before the answer was complete; the connection breaks off.
#[derive(Debug, thiserror::Error)]
#[error("the engine dropped the request")]
pub(super) struct EngineGone;

/// Tokens of one request. Dropping it before the last one aborts the request in the engine.
pub(super) struct Answer {
    shared: Arc<Shared>,
    id: u64,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    prompt_digest: u64,
    prompt_tokens: u32,
    finished: bool,
}

impl Answer {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: u64,
        deliveries: mpsc::UnboundedReceiver<Delivery>,
        prompt_digest: u64,
        prompt_tokens: u32,
    ) -> Self {
        Self { shared, id, deliveries, prompt_digest, prompt_tokens, finished: false }
    }

    /// The delivery's word, and the counts up to it.
    fn take(&mut self, delivery: Delivery) -> (Word, Usage) {
        self.finished |= delivery.finished;
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: delivery.position + 1,
            cached_tokens: delivery.cached_tokens,
        };
        (Word::at(self.prompt_digest, delivery.position), usage)
    }

    /// Waits for the whole answer.
    pub(super) async fn collect(mut self) -> Result<(String, Usage), EngineGone> {
        let mut text = BytesMut::new();
        while let Some(delivery) = self.deliveries.recv().await {
            let (word, usage) = self.take(delivery);
            text.extend_from_slice(word.as_bytes());
            if self.finished {
                return Ok((String::from_utf8_lossy(&text).into_owned(), usage));
            }
        }
        Err(EngineGone)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.finished {
            // A pod that was killed has nothing left to abort.
            let _ = self.shared.commands.send(Command::Abort(self.id));
        }
    }
}

/// The body of a streamed answer. Tokens that wait together leave in one frame.
pub(super) struct AnswerBody {
    answer: Answer,
    writer: ChunkWriter,
    buffer: BytesMut,
}

impl AnswerBody {
    pub(super) fn new(answer: Answer, writer: ChunkWriter) -> Self {
        Self { answer, writer, buffer: BytesMut::with_capacity(4096) }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = EngineGone;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EngineGone>>> {
        let this = &mut *self;
        if this.answer.finished {
            return Poll::Ready(None);
        }
        loop {
            match this.answer.deliveries.poll_recv(context) {
                Poll::Ready(Some(delivery)) => {
                    let (word, usage) = this.answer.take(delivery);
                    this.writer.token(&mut this.buffer, word, delivery.finished, usage);
                    if delivery.finished {
                        this.writer.end(&mut this.buffer, usage);
                        break;
                    }
                }
                Poll::Ready(None) if this.buffer.is_empty() => return Poll::Ready(Some(Err(EngineGone))),
                Poll::Pending if this.buffer.is_empty() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.buffer.split().freeze()))))
    }
}
