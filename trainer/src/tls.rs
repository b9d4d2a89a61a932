//! TLS for both ports: a certificate of the trainer's own, and optionally proof of the clients' (mTLS).
//!
//! The files are PEM and read at the start. With a client CA, who has no certificate of it is refused in the
//! handshake, before a byte of HTTP is read.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tokio_rustls::server::TlsStream;

/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connections whose handshake is done and which nobody has taken yet.
const QUEUE: usize = 64;

/// Where the certificates are.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// Certificate chain of the trainer, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// CA of the clients, PEM; without it clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file that cannot be read or holds something else.
    #[error("{path}: {reason}; give a PEM file")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The files do not fit together.
    #[error("TLS: {0}")]
    Config(String),
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let fail = |reason: String| TlsError::File { path: path.to_owned(), reason };
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(BufReader::new(file)).collect();
    let found = found.map_err(|error| fail(error.to_string()))?;
    if found.is_empty() {
        return Err(fail("there is no certificate in it".to_owned()));
    }
    Ok(found)
}

/// What both servers use. `protocol` is what the handshake agrees on: `h2` or `http/1.1`.
///
/// # Errors
/// [`TlsError`] names the file.
pub fn server_config(options: &TlsOptions, protocol: &str) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&options.cert)?;
    let key = PrivateKeyDer::from_pem_file(&options.key)
        .map_err(|error| TlsError::File { path: options.key.clone(), reason: error.to_string() })?;
    let config = |error: &dyn std::fmt::Display| TlsError::Config(error.to_string());
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| config(&error))?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| config(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| config(&error))?)
        }
    };
    let mut built = builder.with_single_cert(chain, key).map_err(|error| config(&error))?;
    built.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(Arc::new(built))
}

/// A listener whose connections have done their handshake. Each handshake runs by itself: a client that is slow
/// at it, or never begins, holds up no other.
#[derive(Debug)]
pub struct TlsListener {
    address: std::net::SocketAddr,
    connections: mpsc::Receiver<(TlsStream<TcpStream>, std::net::SocketAddr)>,
}

impl TlsListener {
    /// Begins to accept. It ends when the listener is dropped.
    ///
    /// # Errors
    /// The listener's address cannot be read.
    pub fn start(listener: TcpListener, config: Arc<ServerConfig>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, connections) = mpsc::channel(QUEUE);
        tokio::spawn(accept(listener, TlsAcceptor::from(config), sender));
        Ok(Self { address, connections })
    }

    /// Its connections as a stream.
    pub fn incoming(self) -> impl futures_util::Stream<Item = io::Result<TlsStream<TcpStream>>> {
        futures_util::stream::unfold(self.connections, |mut connections| async {
            let (stream, _) = connections.recv().await?;
            Some((Ok(stream), connections))
        })
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<(TlsStream<TcpStream>, std::net::SocketAddr)>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = sender.closed() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of file descriptors: others must end first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                // An error means that the server is ending.
                Ok(Ok(stream)) => drop(sender.send((stream, from)).await),
                Ok(Err(error)) => tracing::warn!(%from, %error, "no TLS with a client"),
                Err(_) => tracing::warn!(%from, "a client took too long for its TLS handshake"),
            }
        });
    }
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            // The accepting task is gone, which it never is before us.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::ServerName;

    struct Files {
        dir: tempfile::TempDir,
    }

    impl Files {
        /// A CA, and certificates of it for the trainer and for a client.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut ca = CertificateParams::new(Vec::new()).unwrap();
            ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
            std::fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
            for name in ["trainer", "client"] {
                let key = KeyPair::generate().unwrap();
                let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
                let cert = params.signed_by(&key, &ca).unwrap();
                std::fs::write(dir.path().join(format!("{name}.pem")), cert.pem()).unwrap();
                std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
            }
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn options(&self, mutual: bool) -> TlsOptions {
            TlsOptions {
                cert: self.path("trainer.pem"),
                key: self.path("trainer.key"),
                client_ca: mutual.then(|| self.path("ca.pem")),
            }
        }

        fn connector(&self, with_certificate: bool) -> TlsConnector {
            let mut roots = RootCertStore::empty();
            roots.add(certificates(&self.path("ca.pem")).unwrap().remove(0)).unwrap();
            let provider = Arc::new(crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
            let mut config = if with_certificate {
                let key = PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap();
                builder.with_client_auth_cert(certificates(&self.path("client.pem")).unwrap(), key).unwrap()
            } else {
                builder.with_no_client_auth()
            };
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsConnector::from(Arc::new(config))
        }
    }

    /// Asks an axum server for its health over TLS.
    async fn ask(address: std::net::SocketAddr, connector: &TlsConnector) -> io::Result<String> {
        let stream = TcpStream::connect(address).await?;
        let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn serve(options: &TlsOptions) -> std::net::SocketAddr {
        let config = server_config(options, "http/1.1").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TlsListener::start(listener, config).unwrap();
        let address = listener.address;
        let router = axum::Router::new().route("/", axum::routing::get(|| async { "well" }));
        tokio::spawn(axum::serve(listener, router).into_future());
        address
    }

    #[tokio::test]
    async fn a_client_that_never_begins_its_handshake_holds_up_no_other() {
        let files = Files::new();
        let address = serve(&files.options(false)).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let answer = ask(address, &files.connector(false)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("well"), "{answer}");
    }

    #[tokio::test]
    async fn with_a_client_ca_only_its_certificates_get_in() {
        let files = Files::new();
        let address = serve(&files.options(true)).await;
        assert!(ask(address, &files.connector(true)).await.unwrap().ends_with("well"));
        assert!(ask(address, &files.connector(false)).await.is_err());
    }

    #[test]
    fn a_file_that_is_no_certificate_is_named() {
        let files = Files::new();
        let options = TlsOptions { cert: files.path("trainer.key"), ..files.options(false) };
        let error = server_config(&options, "h2").unwrap_err().to_string();
        assert!(error.contains("trainer.key") && error.contains("no certificate"), "{error}");
        let options = TlsOptions { key: files.path("missing"), ..files.options(false) };
        assert!(server_config(&options, "h2").unwrap_err().to_string().contains("missing"));
        let options = TlsOptions { key: files.path("client.key"), ..files.options(false) };
        assert!(server_config(&options, "h2").is_err());
    }
}
