//! The name under which a kvtide answers on the bus: one part of a subject.

use std::{fmt, str::FromStr};

use serde::Deserialize;

/// A kvtide's name on the bus. Those of one name share their requests, so they must follow the same streams.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Instance(String);

/// A name that is no part of a subject.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an instance named {got:?}, expected one part of a NATS subject: up to {} bytes without dots, stars, > or spaces",
    Instance::LONGEST
)]
pub struct InstanceError {
    /// The name.
    pub got: String,
}

impl Instance {
    /// Bytes of a name.
    pub const LONGEST: usize = 128;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Instance {
    /// The host's name up to its first dot, or `default` where that is no part of a subject.
    fn default() -> Self {
        let host = gethostname::gethostname();
        let first = host.to_str().and_then(|host| host.split('.').next()?.parse().ok());
        first.unwrap_or_else(|| Instance("default".to_owned()))
    }
}

impl FromStr for Instance {
    type Err = InstanceError;

    fn from_str(name: &str) -> Result<Instance, InstanceError> {
        Instance::try_from(name.to_owned())
    }
}

impl TryFrom<String> for Instance {
    type Error = InstanceError;

    fn try_from(name: String) -> Result<Instance, InstanceError> {
        let parts = |c: char| ".*>".contains(c) || c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > Instance::LONGEST || name.contains(parts) {
            return Err(InstanceError { got: name.chars().take(Instance::LONGEST).collect() });
        }
        Ok(Instance(name))
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Instance;

    #[test]
    fn a_name_is_one_part_of_a_subject() {
        for name in ["a", "router-1", "host_2", "é", &"x".repeat(128)] {
            assert_eq!(name.parse::<Instance>().map(|instance| instance.to_string()).as_deref(), Ok(name));
        }
        for name in ["", "a.b", ".", "*", "a*", ">", "a b", "a\tb", "a\r\nb", "\0", &"x".repeat(129)] {
            let error = name.parse::<Instance>().unwrap_err();
            assert!(
                name.starts_with(&error.got) && error.to_string().contains("expected one part"),
                "{error}"
            );
        }
    }
}
