//! Who may ask for what: access tokens, their roles, and the tenants that they see.
//!
//! A token is 256 random bits, so its SHA-256 is all that has to be kept of it. The file has a line a token, as JSON:
//! `{"sha256": "…", "roles": ["query"], "tenants": ["acme"]}`; empty lines and lines that start with `#` say nothing.

mod token;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::watched::{Reason, read_text};

use token::{HASH_BYTES, hash_of};
pub use token::{NewToken, TOKEN_PREFIX};

/// The tenant that stands for all.
const ALL: &str = "*";

/// What a token may be used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To ask for overlaps, and to say what came of them.
    Query,
    /// To hand in events.
    Ingest,
    /// To read metrics.
    Metrics,
    /// Everything: workers, scopes, snapshots, and what the others may.
    Admin,
}

/// What one token allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    roles: BTreeSet<Role>,
    tenants: Tenants,
    /// Whether others see single tenants.
    others_have_tenants: bool,
}

/// Whose blocks a token sees.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Tenants {
    /// Everyone's, and nobody's.
    All,
    /// Those of the tenants that are listed; with none, blocks of no tenant.
    Listed(BTreeSet<String>),
}

impl Grant {
    /// What everyone may where there are no tokens.
    #[must_use]
    pub fn everything() -> Grant {
        Grant { roles: BTreeSet::from([Role::Admin]), tenants: Tenants::All, others_have_tenants: false }
    }

    /// Whether it allows what a role does.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role) || self.roles.contains(&Role::Admin)
    }

    /// Whether it shows the blocks of that tenant, or of none.
    #[must_use]
    pub fn sees(&self, tenant: Option<&str>) -> bool {
        match (&self.tenants, tenant) {
            (Tenants::All, _) => true,
            (Tenants::Listed(listed), Some(tenant)) => listed.contains(tenant),
            (Tenants::Listed(listed), None) => listed.is_empty(),
        }
    }

    /// Whether it shows blocks by their hashes, which name no tenant and may be anyone's.
    #[must_use]
    pub fn sees_hashes(&self) -> bool {
        match &self.tenants {
            Tenants::All => true,
            Tenants::Listed(listed) => listed.is_empty() && !self.others_have_tenants,
        }
    }
}

/// The tokens that are known, by their hashes.
#[derive(Debug, Default)]
pub struct Tokens {
    tokens: Vec<([u8; HASH_BYTES], Arc<Grant>)>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    sha256: String,
    roles: BTreeSet<Role>,
    #[serde(default)]
    tenants: BTreeSet<String>,
}

/// Why a file of tokens cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: expected {expected}")]
pub struct TokensError {
    /// Counted from 1.
    pub line: usize,
    /// What should be there. What is there may be secret.
    pub expected: &'static str,
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Reason`], naming it.
    pub fn read(paths: &[PathBuf]) -> Result<Tokens, Reason> {
        let [path] = paths else { return Err("expected one file".into()) };
        Ok(Tokens::parse(&read_text(path)?).map_err(|error| format!("{}: {error}", path.display()))?)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`TokensError`] for the first line that is none.
    pub fn parse(text: &str) -> Result<Tokens, TokensError> {
        let mut known: Vec<([u8; HASH_BYTES], Grant)> = Vec::new();
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |expected| TokensError { line: number, expected };
            let Line { sha256, roles, tenants } = serde_json::from_str(line).map_err(|_| wrong(FORM))?;
            let hash = token::parse_hash(&sha256).ok_or_else(|| wrong("sha256 as 64 hexadecimal digits"))?;
            if roles.is_empty() {
                return Err(wrong("one role or more"));
            }
            if known.iter().any(|(other, _)| *other == hash) {
                return Err(wrong("a token that no line before it has"));
            }
            let tenants = Tenants::new(tenants).ok_or_else(|| wrong(TENANTS))?;
            known.push((hash, Grant { roles, tenants, others_have_tenants: false }));
        }
        let names_tenants =
            |grant: &Grant| matches!(&grant.tenants, Tenants::Listed(listed) if !listed.is_empty());
        let others_have_tenants = known.iter().any(|(_, grant)| names_tenants(grant));
        let tokens =
            known.into_iter().map(|(hash, grant)| (hash, Arc::new(Grant { others_have_tenants, ..grant })));
        Ok(Tokens { tokens: tokens.collect() })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// What a token allows, if it is known. Takes as long whichever it is.
    #[must_use]
    pub fn grant(&self, token: &[u8]) -> Option<Arc<Grant>> {
        let hash = hash_of(token);
        let mut found = None;
        for (known, grant) in &self.tokens {
            if bool::from(known.ct_eq(&hash)) {
                found = Some(grant);
            }
        }
        found.cloned()
    }
}

const FORM: &str = "an object with sha256, roles (query, ingest, metrics, admin) and perhaps tenants";
const TENANTS: &str = "names of tenants, or * alone for all";

impl Tenants {
    /// None where they contradict each other.
    fn new(tenants: BTreeSet<String>) -> Option<Tenants> {
        match (tenants.contains(ALL), tenants.len()) {
            (true, 1) => Some(Tenants::All),
            (true, _) => None,
            (false, _) if tenants.contains("") => None,
            (false, _) => Some(Tenants::Listed(tenants)),
        }
    }
}
