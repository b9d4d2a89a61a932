//! A headless Chromium, driven by the DevTools protocol: for pages that must work in a real browser.
//!
//! One connection, one page; commands are answered in order, what the page says meanwhile (errors, messages on its
//! console, failed loads) is kept. What it is not: a general driver; it knows the handful of commands that are needed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::process::Process;
use crate::{paths, wait};

/// A browser on a busy machine starts within this.
const START: Duration = Duration::from_secs(40);

/// Every command is answered within this.
const PATIENCE: Duration = Duration::from_secs(20);

/// A browser with one page; dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    _process: Process,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    serial: u64,
    complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser that `scripts/setup --browser` installed; `None`, said on standard error, where it is not.
    ///
    /// # Errors
    /// When it is there and does not start.
    pub async fn start(dir: &Path) -> Result<Option<Self>> {
        let Ok(chromium) = paths::chromium() else {
            eprintln!("SKIPPED: no Chromium: scripts/setup --browser installs one");
            return Ok(None);
        };
        let home = chromium.parent().context("Chromium has a folder")?.to_owned();
        let profile = dir.join("browser");
        let mut command = Command::new(&chromium);
        command
            .args(["--headless", "--remote-debugging-port=0", "--disable-gpu", "--no-zygote"])
            // The tests open nothing but their own pages, and run as root in containers.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.display()))
            // It comes with the libraries and the font that a bare machine lacks.
            .env("LD_LIBRARY_PATH", home.join("lib"))
            .env("FONTCONFIG_PATH", &home);
        let process = Process::start("chromium", command, dir)?;
        let said = profile.join("DevToolsActivePort");
        let at = wait::until("Chromium to listen", START, async || {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            let mut lines = text.lines();
            Ok(lines.next().zip(lines.next()).map(|(port, path)| format!("ws://127.0.0.1:{port}{path}")))
        })
        .await?;
        let (socket, _) = tokio_tungstenite::connect_async(&at).await.with_context(|| at.clone())?;
        let mut browser =
            Self { _process: process, socket, session: None, serial: 0, complaints: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach).await?;
        browser.session = session["sessionId"].as_str().map(ToOwned::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            browser.call(domain, json!({})).await?;
        }
        Ok(Some(browser))
    }

    /// Shows this address.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub async fn open(&mut self, address: SocketAddr, path: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({"url": format!("http://{address}{path}")})).await?;
        match answer["errorText"].as_str() {
            Some(error) => bail!("{address}{path}: {error}"),
            None => Ok(()),
        }
    }

    /// Makes the window this large, in CSS pixels; `phone` as phones lay pages out.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn resize(&mut self, width: u32, height: u32, phone: bool) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    /// Value of an expression in the page.
    ///
    /// # Errors
    /// When it throws.
    pub async fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let ask = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", ask).await?;
        if answer.get("exceptionDetails").is_some() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true in the page.
    ///
    /// # Errors
    /// When it is not within `within`.
    pub async fn wait_for(&mut self, expression: &str, within: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        while self.evaluate(expression).await? != Value::Bool(true) {
            if tokio::time::Instant::now() > deadline {
                let text = self.evaluate("document.body.textContent").await?;
                bail!("not within {within:?}: {expression}; the page says: {text}; {:?}", self.complaints);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Writes what the whole page looks like, as PNG.
    ///
    /// # Errors
    /// When it cannot be drawn or written.
    pub async fn screenshot(&mut self, path: &Path) -> Result<()> {
        let ask = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", ask).await?;
        let data = answer["data"].as_str().context("no picture")?;
        std::fs::write(path, base64::engine::general_purpose::STANDARD.decode(data)?)?;
        Ok(())
    }

    /// What the page complained of so far: errors, warnings on its console, loads that failed.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.serial += 1;
        let id = self.serial;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).await?;
        let answer = tokio::time::timeout(PATIENCE, self.answer(id)).await;
        answer.with_context(|| format!("{method} was not answered"))?.with_context(|| method.to_owned())
    }

    async fn answer(&mut self, id: u64) -> Result<Value> {
        while let Some(message) = self.socket.next().await {
            let Message::Text(text) = message? else { continue };
            let mut message: Value = serde_json::from_str(&text)?;
            if message["id"] == id {
                if let Some(error) = message.get("error") {
                    bail!("{error}");
                }
                return Ok(message["result"].take());
            }
            self.note(&message);
        }
        bail!("Chromium has closed the connection")
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => Some(params["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled")
                if matches!(params["type"].as_str(), Some("error" | "warning" | "assert")) =>
            {
                Some(params["args"].to_string())
            }
            Some("Log.entryAdded")
                if matches!(params["entry"]["level"].as_str(), Some("error" | "warning")) =>
            {
                Some(params["entry"].to_string())
            }
            _ => None,
        };
        self.complaints.extend(complaint);
    }
}
