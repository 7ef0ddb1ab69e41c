//! A new token, and what is kept of it.

use std::{collections::BTreeSet, fmt::Write};

use rand::RngExt;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Line, Role, TENANTS, Tenants};

pub(super) const HASH_BYTES: usize = 32;
const TOKEN_BYTES: usize = 32;
/// By which a token that lies around is recognised.
pub const TOKEN_PREFIX: &str = "kvt_";

/// A token that nobody has yet, and the line of the file that makes it known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NewToken {
    /// To be sent as `Authorization: Bearer`.
    pub token: String,
    /// To be kept.
    pub line: String,
}

impl NewToken {
    /// Makes one.
    ///
    /// # Errors
    /// What is expected of roles and tenants.
    pub fn new(roles: BTreeSet<Role>, tenants: BTreeSet<String>) -> Result<NewToken, &'static str> {
        if roles.is_empty() {
            return Err("one role or more");
        }
        Tenants::new(tenants.clone()).ok_or(TENANTS)?;
        let token = format!("{TOKEN_PREFIX}{}", hexadecimal(&rand::rng().random::<[u8; TOKEN_BYTES]>()));
        let line = Line { sha256: hexadecimal(&hash_of(token.as_bytes())), roles, tenants };
        // Of strings and names alone, it is always JSON.
        let line = serde_json::to_string(&line).unwrap_or_default();
        Ok(NewToken { token, line })
    }
}

pub(super) fn hash_of(token: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(token).into()
}

pub(super) fn parse_hash(digits: &str) -> Option<[u8; HASH_BYTES]> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        pair.iter().try_fold(0, |byte, &digit| Some(byte * 16 + char::from(digit).to_digit(16)?))
    };
    let bytes: Option<Vec<u8>> = pairs.iter().map(|pair| u8::try_from(byte(pair)?).ok()).collect();
    bytes?.try_into().ok().filter(|_| rest.is_empty())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
