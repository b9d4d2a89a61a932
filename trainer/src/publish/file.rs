//! Publishing through a file that Envoy watches (`path_config_source`).
//!
//! For setups without a connection from Envoy to the trainer. Envoy looks at a watched file when another is
//! moved over it, so every version is written beside it and renamed. There is no acknowledgement this way:
//! whether Envoy took it shows in its own statistics.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::Publication;
use crate::registry::{RegistryError, write_durably};

/// Writes a publication.
///
/// # Errors
/// [`RegistryError`] names the file.
pub fn write(path: &std::path::Path, publication: &Publication) -> Result<(), RegistryError> {
    write_durably(path, publication.json.as_bytes())
}

/// Writes every publication from now on; ends when the sender does.
pub async fn follow(path: PathBuf, mut publications: watch::Receiver<Arc<Publication>>) {
    while publications.changed().await.is_ok() {
        let publication = publications.borrow_and_update().clone();
        let to = path.clone();
        let written = tokio::task::spawn_blocking(move || write(&to, &publication)).await;
        if let Ok(Err(error)) = written {
            tracing::error!(%error, "cannot publish to the file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::tests::template;

    #[tokio::test]
    async fn every_publication_replaces_the_file_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ecds.json");
        let first = Arc::new(template().publication(1, None));
        write(&path, &first).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first.json);
        let (sender, receiver) = watch::channel(first);
        let follower = tokio::spawn(follow(path.clone(), receiver));
        let second = Arc::new(template().publication(2, Some(b"model")));
        sender.send_replace(second.clone());
        // The channel closes only after the follower has seen the last value.
        drop(sender);
        follower.await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), second.json);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
