//! What goes wrong, as one of the package's exceptions, with what was got and what was expected.

use kvtide::{ApplyError, BindError, QueryError, RegisterError};
use pyo3::{
    prelude::*,
    types::{PyModule, PyType},
};

/// The exceptions of `kvtide.errors` that are raised here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    InvalidArgument,
    WrongType,
    Undecodable,
    UnknownScope,
    SeveralScopes,
    TooLarge,
    TooManyRanks,
    Conflict,
    Refused,
    BadReply,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::InvalidArgument => "InvalidArgument",
            Kind::WrongType => "WrongType",
            Kind::Undecodable => "Undecodable",
            Kind::UnknownScope => "UnknownScope",
            Kind::SeveralScopes => "SeveralScopes",
            Kind::TooLarge => "TooLarge",
            Kind::TooManyRanks => "TooManyRanks",
            Kind::Conflict => "Conflict",
            Kind::Refused => "Refused",
            Kind::BadReply => "BadReply",
        }
    }
}

/// An exception to be. It names no tokens, hashes or tenants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) what: String,
    pub(crate) got: String,
    pub(crate) expected: String,
}

impl Fault {
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts alike, each written down at once")]
    pub(crate) fn new(
        kind: Kind,
        what: impl Into<String>,
        got: impl ToString,
        expected: impl ToString,
    ) -> Fault {
        Fault { kind, what: what.into(), got: got.to_string(), expected: expected.to_string() }
    }

    /// A value that cannot be.
    pub(crate) fn invalid(what: impl Into<String>, got: impl ToString, expected: impl ToString) -> Fault {
        Fault::new(Kind::InvalidArgument, what, got, expected)
    }

    /// A value of another type.
    pub(crate) fn wrong_type(what: impl Into<String>, got: &Bound<'_, PyAny>, expected: &str) -> Fault {
        let name = got.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
        Fault::new(Kind::WrongType, what, name, expected)
    }

    fn raise(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let class = PyModule::import(py, "kvtide.errors")?.getattr(self.kind.name())?;
        class.cast::<PyType>()?.call1((self.what, self.got, self.expected))
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        Python::attach(|py| fault.raise(py).map_or_else(|error| error, PyErr::from_value))
    }
}

impl From<QueryError> for Fault {
    fn from(error: QueryError) -> Fault {
        let what = error.to_string();
        match error {
            QueryError::UnknownScope { known } => {
                Fault::new(Kind::UnknownScope, what, format!("{known} other scopes"), "a known scope")
            }
            QueryError::SeveralScopes { fitting, .. } => {
                Fault::new(Kind::SeveralScopes, what, format!("{fitting} scopes"), "one")
            }
            QueryError::TooManyTokens { got, limit } => {
                Fault::new(Kind::TooLarge, what, format!("{got} tokens"), format!("at most {limit}"))
            }
            QueryError::TooManyMedia { got, limit } => {
                Fault::new(Kind::TooLarge, what, format!("{got} media"), format!("at most {limit}"))
            }
            QueryError::TooManyRanks { limit } => Fault::new(
                Kind::TooLarge,
                what,
                format!("more than {limit} ranks"),
                format!("at most {limit}"),
            ),
            QueryError::OtherHashing { expected, got } => Fault::new(Kind::Conflict, what, got, expected),
        }
    }
}

impl From<ApplyError> for Fault {
    fn from(error: ApplyError) -> Fault {
        match error {
            ApplyError::Undecodable { error, .. } => {
                let what = "a message that does not decode: its ranks have a hole";
                Fault::new(Kind::Undecodable, what, error, "a whole frame or batch")
            }
            ApplyError::OtherFormat { expected, got, .. } => {
                Fault::new(Kind::Conflict, "a message of another format", got, expected)
            }
            ApplyError::LetGo { .. } => {
                Fault::new(Kind::Conflict, error.to_string(), "a stream that was let go", "one that is bound")
            }
        }
    }
}

impl From<BindError> for Fault {
    fn from(error: BindError) -> Fault {
        let what = error.to_string();
        match error {
            BindError::NameTaken { .. } => {
                Fault::new(Kind::Conflict, what, "other settings", "those of before")
            }
            BindError::NoBlockSize { .. } => Fault::invalid("block_size", 0, "1 token or more"),
            BindError::OtherHashing { expected, got, .. } => Fault::new(Kind::Conflict, what, got, expected),
            BindError::ScopesFull { limit } => {
                Fault::new(Kind::TooLarge, what, "one more scope", format!("at most {limit}"))
            }
        }
    }
}

impl From<RegisterError> for Fault {
    fn from(error: RegisterError) -> Fault {
        match error {
            RegisterError::Scope(error) => error.into(),
            RegisterError::RanksFull(full) => Fault::new(
                Kind::TooManyRanks,
                full.to_string(),
                "one more rank",
                format!("at most {}", full.limit),
            ),
        }
    }
}
