//! The pod's port: accepts connections, and cuts or refuses them when a fault says so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use super::Shared;
use super::faults::Door;

/// Pause after a failed accept or bind (no file descriptors, port still in use).
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Serves until the pod is killed.
pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener, address: SocketAddr, router: Router) {
    let mut door = shared.faults.door.subscribe();
    let mut listener = Some(listener);
    loop {
        let state = *door.borrow_and_update();
        match (state, &listener) {
            (Door::Dead, _) => return,
            (Door::Refusing, _) => {
                listener = None;
                if door.changed().await.is_err() {
                    return;
                }
            }
            (Door::Open, None) => match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                Err(error) => {
                    tracing::warn!(%address, %error, "cannot listen again yet");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            },
            (Door::Open, Some(open)) => {
                tokio::select! {
                    accepted = open.accept() => match accepted {
                        Ok((stream, _)) => {
                            tokio::spawn(connection(shared.clone(), stream, router.clone()));
                        }
                        Err(error) => {
                            tracing::warn!(%address, %error, "accept failed");
                            tokio::time::sleep(RETRY_PAUSE).await;
                        }
                    },
                    changed = door.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, router: Router) {
    // A token is a small write; with Nagle's algorithm it would wait for the acknowledgement of the last.
    let _ = stream.set_nodelay(true);
    let serving =
        http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::select! {
        // A client that hangs up ends in an error here; its request is aborted by the body's drop.
        _ = serving => {}
        () = shared.faults.killed() => {}
    }
}
