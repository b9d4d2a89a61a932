//! A client that disconnects frees its sequence and its blocks.

mod common;

use common::{eventually, quick_profile, request_bytes, start};
use foretoken_sim::engine::profile::Profile;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn begin(pod: &foretoken_sim::pod::LivePod, stream: bool) -> TcpStream {
    let body = json!({"prompt": "word ".repeat(100), "max_tokens": 10_000, "stream": stream}).to_string();
    let mut connection = TcpStream::connect(pod.addr()).await.unwrap();
    connection.write_all(&request_bytes("POST", "/v1/completions", &body)).await.unwrap();
    connection
}

#[tokio::test]
async fn a_stream_that_is_dropped_amid_the_answer_is_aborted() {
    let pod = start(quick_profile()).await;
    let mut connection = begin(&pod, true).await;
    let mut some = [0; 2048];
    assert!(connection.read(&mut some).await.unwrap() > 0);
    eventually("it runs", || pod.stats().engine.running == 1).await;
    drop(connection);
    eventually("it is aborted", || pod.stats().engine.aborted == 1).await;
    let engine = pod.stats().engine;
    assert_eq!((engine.running, engine.waiting, engine.kv_held_blocks), (0, 0, 0));
}

#[tokio::test]
async fn a_waiting_and_an_unstreamed_request_are_aborted_too() {
    let pod = start(Profile { max_num_seqs: 1, ..quick_profile() }).await;
    let running = begin(&pod, false).await;
    eventually("the first runs", || pod.stats().engine.running == 1).await;
    let waiting = begin(&pod, true).await;
    eventually("the second waits", || pod.stats().engine.waiting == 1).await;
    drop(waiting);
    eventually("the queue is empty", || pod.stats().engine.waiting == 0).await;
    drop(running);
    eventually("all is aborted", || pod.stats().engine.aborted == 2).await;
    assert_eq!(pod.stats().engine.kv_held_blocks, 0);
}
