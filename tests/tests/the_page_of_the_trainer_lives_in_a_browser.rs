//! The trainer's page in a real Chromium: it shows what the trainer knows, follows it by itself, complains of nothing,
//! and can be read on a phone.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use foretoken_core::fallback::Rung;
use foretoken_tests::browser::Browser;
use foretoken_tests::trainer::{self, Trainer};
use foretoken_tests::{http, paths};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::synthetic;

const SOON: Duration = Duration::from_secs(20);

/// Sends samples as if they were measured just now.
async fn feed(address: SocketAddr, seed: u64, count: usize) -> Result<()> {
    let now_ms = now_ms();
    let mut body = String::new();
    for (index, mut sample) in synthetic::samples(seed, count).into_iter().enumerate() {
        sample.at_ms = now_ms - (count - index) as u64;
        sample.pod = format!("10.0.0.{}:8000", index % 3 + 1);
        sample.rung = Rung::Model;
        sample.model_id = "an-earlier-one".to_owned();
        body += &serde_json::to_string(&sample)?;
        body.push('\n');
    }
    let answer = http::send(::http::Method::POST, address, "/v1/samples", &[], body).await?;
    ensure!(answer.json()?["accepted"] == count, "{}", answer.text());
    Ok(())
}

/// The number under a tile's name.
fn tile(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.tile')].find(t => t.firstChild.textContent === '{name}')?.lastChild.textContent"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_and_follows_what_the_trainer_knows_and_fits_on_a_phone() -> Result<()> {
    let dir = paths::run_dir("page")?;
    let Some(mut browser) = Browser::start(&dir).await? else { return Ok(()) };
    let trainer = Trainer::start("trainer", &trainer::Options::new()?, &dir).await?;
    let (address, _) = trainer.addresses();
    browser.resize(1280, 900, false).await?;
    browser.open(address, "/").await?;
    browser.wait_for(&format!("{} === 'none yet'", tile("Generation")), SOON).await?;

    feed(address, 1, 600).await?;
    // All by events: the page is not loaded again.
    browser
        .wait_for(&format!("{} === '600'", format_args!("{}?.replace(/\\D/g, '')", tile("Samples"))), SOON)
        .await?;
    browser.wait_for(&format!("Number({}) >= 1", tile("Generation")), SOON).await?;
    for shown in [
        format!("/^[0-9.]+ %$/.test({})", tile("Live error, TTFT")),
        format!("/^[0-9.]+ %$/.test({})", tile("Live error, TPOT")),
        "document.querySelectorAll('#pairs circle').length > 100".to_owned(),
        "document.querySelectorAll('#load tr').length > 2".to_owned(),
        "document.querySelectorAll('#pod tr').length > 2".to_owned(),
        "document.querySelectorAll('#versions tr').length > 1".to_owned(),
        "document.querySelector('#fit').textContent.includes('published')".to_owned(),
        "document.querySelector('#drift').textContent.length > 20".to_owned(),
        "document.querySelector('#state').textContent === ''".to_owned(),
    ] {
        browser.wait_for(&shown, SOON).await?;
    }
    browser.screenshot(&dir.join("page.png")).await?;

    feed(address, 2, 400).await?;
    browser
        .wait_for(&format!("{} === '1000'", format_args!("{}?.replace(/\\D/g, '')", tile("Samples"))), SOON)
        .await?;
    trainer.hold().await?;
    browser.wait_for(&format!("{} === 'held'", tile("Publishing")), SOON).await?;

    browser.resize(390, 844, true).await?;
    let width = browser.evaluate("document.documentElement.scrollWidth").await?;
    assert_eq!(width, 390, "the page is wider than a phone");
    let small = "[...document.querySelectorAll('body *')].filter(e => e.children.length === 0 && e.textContent.trim() && e.namespaceURI.endsWith('xhtml') && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.textContent)";
    assert_eq!(browser.evaluate(small).await?, serde_json::json!([]), "too small to read");
    browser.screenshot(&dir.join("phone.png")).await?;
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());

    // A trainer that goes is noticed.
    drop(trainer);
    browser.wait_for("document.querySelector('#state').textContent === 'not connected'", SOON).await?;
    Ok(())
}
