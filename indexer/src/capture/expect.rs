//! What a folder of captures allows: `expect.json`, with the settings that the captured streams need.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kvtide_radix::{Copies, Group, Window};
use serde::Deserialize;

use super::{CaptureError, malformed, parse_json, read};

/// What is expected of one capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Every answer must be the engine's. The same as `over` and `under` of 0.
    #[serde(default)]
    pub exact: bool,
    /// How many answers may credit too much.
    #[serde(default)]
    pub over: Allowed,
    /// How many answers may credit too little.
    #[serde(default)]
    pub under: Allowed,
    /// Settings of its streams.
    #[serde(default)]
    pub stream: StreamSettings,
}

/// A number of answers, for both tiers together or for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Allowed {
    /// For all tiers together.
    Together(usize),
    /// For each tier.
    Each {
        /// Answers for the GPU.
        gpu: usize,
        /// Answers for GPU and host.
        host: usize,
    },
}

impl Default for Allowed {
    fn default() -> Self {
        Allowed::Together(0)
    }
}

impl Allowed {
    /// Whether so many wrong answers are within what is allowed.
    #[must_use]
    pub fn covers(self, wrong_gpu: usize, wrong_host: usize) -> bool {
        match self {
            Allowed::Together(most) => wrong_gpu + wrong_host <= most,
            Allowed::Each { gpu, host } => wrong_gpu <= gpu && wrong_host <= host,
        }
    }
}

/// Settings of an engine's stream that its events do not state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSettings {
    /// `"counted"` (the default) or `"set"`.
    #[serde(default)]
    copies: StreamCopies,
    /// Blocks in a chunk of the host tier.
    #[serde(default)]
    pub host_chunk_blocks: u32,
    /// Windows in tokens, by group.
    #[serde(default)]
    window_tokens: BTreeMap<String, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StreamCopies {
    #[default]
    Counted,
    Set,
}

impl StreamSettings {
    /// What a second announcement means.
    #[must_use]
    pub fn copies(&self) -> Copies {
        match self.copies {
            StreamCopies::Counted => Copies::Counted,
            StreamCopies::Set => Copies::Set,
        }
    }

    /// The windows of further groups; one that is no group's index is passed over.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        self.window_tokens.iter().filter_map(|(group, &tokens)| {
            let group = group.parse().ok().and_then(Group::new)?;
            Some(Window { group, tokens })
        })
    }
}

impl Expectation {
    /// Reads the expectations of the captures in `folder`, in its order, with the path of each capture.
    ///
    /// # Errors
    /// [`CaptureError`] where `expect.json` is missing or not of this form.
    pub fn read_all(folder: &Path) -> Result<Vec<(PathBuf, Expectation)>, CaptureError> {
        let path = folder.join("expect.json");
        let all: BTreeMap<String, Expectation> = parse_json(&path, &read(&path)?, "expectations by capture")?;
        if all.is_empty() {
            return Err(malformed(&path, "expectations by capture", "none".into()));
        }
        Ok(all.into_iter().map(|(name, expected)| (folder.join(name), expected)).collect())
    }
}
