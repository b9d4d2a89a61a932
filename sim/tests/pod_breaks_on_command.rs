//! The fault switches, from the handle and over HTTP.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::{call, eventually, quick_profile, read_response, request_bytes, start};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{LivePod, PodOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SHORT: &str = r#"{"prompt":"x","max_tokens":2}"#;

#[tokio::test]
async fn a_killed_pod_cuts_its_streams_and_refuses_connections() {
    let pod = start(quick_profile()).await;
    let body = json!({"prompt": "x", "max_tokens": 10_000, "stream": true}).to_string();
    let mut stream = TcpStream::connect(pod.addr()).await.unwrap();
    stream.write_all(&request_bytes("POST", "/v1/completions", &body)).await.unwrap();
    stream.read_exact(&mut [0; 200]).await.unwrap();
    pod.kill();
    assert!(read_response(&mut stream).await.is_none(), "the answer must not end as if it were whole");
    for _ in 0..200 {
        if TcpStream::connect(pod.addr()).await.is_err() {
            assert!(pod.reset().await.is_err());
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("a killed pod still listens");
}

#[tokio::test]
async fn another_pod_can_take_the_port_of_a_dead_one() {
    let pod = start(quick_profile()).await;
    let port = pod.addr().port();
    drop(pod);
    for _ in 0..200 {
        let options = PodOptions { port, ..PodOptions::new(quick_profile()) };
        if let Ok(next) = LivePod::start(options).await {
            assert_eq!(call(next.addr(), "POST", "/v1/completions", SHORT).await.status(), 200);
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the port stays taken");
}

#[tokio::test]
async fn a_refusing_pod_keeps_its_connections_and_comes_back() {
    let pod = start(quick_profile()).await;
    let mut old = TcpStream::connect(pod.addr()).await.unwrap();
    old.write_all(&request_bytes("POST", "/v1/completions", SHORT)).await.unwrap();
    read_response(&mut old).await.unwrap();
    pod.refuse(true);
    // A connection that falls into the moment of closing may be reset instead.
    let refused = async {
        while TcpStream::connect(pod.addr()).await.map_err(|error| error.kind()).err()
            != Some(ErrorKind::ConnectionRefused)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), refused).await.unwrap();
    old.write_all(&request_bytes("POST", "/v1/completions", SHORT)).await.unwrap();
    assert_eq!(read_response(&mut old).await.unwrap().status(), 200);
    pod.refuse(false);
    let back = async {
        while TcpStream::connect(pod.addr()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), back).await.unwrap();
    assert_eq!(call(pod.addr(), "POST", "/v1/completions", SHORT).await.status(), 200);
}

#[tokio::test]
async fn the_next_requests_fail_with_the_status_and_then_all_is_well() {
    let pod = start(quick_profile()).await;
    let switch = r#"{"fail_next":{"status":503,"count":2}}"#;
    assert_eq!(call(pod.addr(), "POST", "/sim/fault", switch).await.status(), 204);
    for expected in [503, 503, 200] {
        assert_eq!(call(pod.addr(), "POST", "/v1/completions", SHORT).await.status(), expected);
    }
    // Metrics pages and health are not inference requests.
    pod.fail_next(500, 1);
    assert_eq!(call(pod.addr(), "GET", "/metrics", "").await.status(), 200);
    assert_eq!(call(pod.addr(), "POST", "/v1/completions", SHORT).await.status(), 500);
}

#[tokio::test]
async fn a_slow_pod_takes_longer_by_the_factor() {
    let pod = start(Profile { floor_ms: 5.0, ..quick_profile() }).await;
    let body = json!({"prompt": "x", "max_tokens": 20}).to_string();
    let took = async || {
        let began = Instant::now();
        call(pod.addr(), "POST", "/v1/completions", &body).await;
        began.elapsed().as_secs_f64()
    };
    let plain = took().await;
    assert_eq!(call(pod.addr(), "POST", "/sim/fault", r#"{"slow":4.0}"#).await.status(), 204);
    let slow = took().await;
    // 20 steps of 5.1 ms against 20.4 ms.
    assert!(plain >= 0.1 && slow >= 0.4 && slow > 2.0 * plain, "{plain} {slow}");
}

#[tokio::test]
async fn switches_that_make_no_sense_are_refused_and_without_the_flag_there_are_none() {
    let pod = start(quick_profile()).await;
    for body in [r#"{"slow":0}"#, r#"{"fail_next":{"status":200,"count":1}}"#, r#"{"explode":true}"#, ""] {
        assert_eq!(call(pod.addr(), "POST", "/sim/fault", body).await.status(), 400, "{body}");
    }
    let plain = LivePod::start(PodOptions::new(quick_profile())).await.unwrap();
    for path in ["/sim/fault", "/sim/reset"] {
        assert_eq!(call(plain.addr(), "POST", path, r#"{"kill":true}"#).await.status(), 404);
    }
}

#[tokio::test]
async fn a_kill_over_http_is_a_kill() {
    let pod = start(quick_profile()).await;
    let mut stream = TcpStream::connect(pod.addr()).await.unwrap();
    stream.write_all(&request_bytes("POST", "/sim/fault", r#"{"kill":true}"#)).await.unwrap();
    // The connection dies with the pod; whether the answer got out before is chance.
    let _ = read_response(&mut stream).await;
    let address = pod.addr();
    eventually("nobody listens", || std::net::TcpStream::connect(address).is_err()).await;
}
