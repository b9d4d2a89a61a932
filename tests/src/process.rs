//! Child processes that never outlive their parent, and whose words are kept.
//!
//! Standard output is read line by line (our programs say on it that they are ready) and goes to the log
//! as well; standard error goes to the log. Dropping a [`Process`] ends it: asked first, then killed. When
//! this process dies without dropping anything, the kernel kills the children.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How long a process has to end when asked, before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Lines of the log that an error message quotes.
const TAIL_LINES: usize = 15;

/// A running child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    lines: UnboundedReceiver<String>,
}

impl Process {
    /// Starts `command`; its log is `<name>.log` in `log_dir`.
    ///
    /// # Errors
    /// When the log cannot be written or the program cannot be run.
    pub fn start(name: &str, mut command: Command, log_dir: &Path) -> Result<Self> {
        let log = log_dir.join(format!("{name}.log"));
        let log_file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        // A group of its own: Ctrl-C in a terminal reaches us alone, and we end the children in order.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file.try_clone()?).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = spawn(command).with_context(|| format!("cannot start {name} ({program})"))?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("{name} has no standard output"))?;
        let (sender, lines) = unbounded_channel();
        std::thread::Builder::new().name(format!("{name}-out")).spawn(move || {
            let mut log_file = log_file;
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The log is a help for people; a full disk shall not hide the line from the harness.
                let _ = writeln!(log_file, "{line}");
                let _ = sender.send(line);
            }
        })?;
        Ok(Self { name: name.to_owned(), child, log, lines })
    }

    /// The next line on its standard output.
    ///
    /// # Errors
    /// When none comes in time or the process ends first; quotes the log.
    pub async fn line(&mut self, within: Duration) -> Result<String> {
        match tokio::time::timeout(within, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!("{} ended before it said anything\n{}", self.name, self.tail()),
            Err(_) => bail!("{} said nothing for {within:?}\n{}", self.name, self.tail()),
        }
    }

    /// Checks that it is still running.
    ///
    /// # Errors
    /// When it has ended; quotes the log.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}\n{}", self.name, self.tail()),
        }
    }

    /// Kills it at once, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The log's last lines, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        let text = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.len().saturating_sub(TAIL_LINES);
        let quoted =
            lines.iter().skip(start).map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n");
        format!("  last lines of {}:\n{quoted}", self.log.display())
    }

    fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

type Job = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Spawns from one thread that lives as long as this process: the kernel ends a child when the *thread*
/// that spawned it ends, and an async runtime's threads come and go.
fn spawn(mut command: Command) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    die_with_parent(&mut command);
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let gone = || std::io::Error::other("the thread that starts processes is gone");
    let (reply, answer) = mpsc::channel();
    spawner.lock().map_err(|_| gone())?.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[expect(unsafe_code, reason = "std offers no safe way to run code between fork and exec")]
fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe calls are
    // allowed: prctl is one, and nothing here allocates or locks.
    unsafe {
        command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_process_that_ends_early_is_reported_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            Process::start("early", shell("echo no such option >&2; exit 3"), dir.path()).unwrap();
        let error = process.line(Duration::from_secs(5)).await.unwrap_err().to_string();
        assert!(error.contains("no such option"), "{error}");
    }

    #[tokio::test]
    async fn dropping_ends_a_process_that_ignores_the_request() {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            Process::start("stubborn", shell("trap '' TERM; echo up; while :; do sleep 1; done"), dir.path())
                .unwrap();
        assert_eq!(process.line(Duration::from_secs(5)).await.unwrap(), "up");
        let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
        drop(process);
        assert!(kill(pid, None).is_err(), "the process is still there");
    }
}
