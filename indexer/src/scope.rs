//! Scopes: everything that must be equal before two blocks may be compared.

use serde::{Deserialize, Deserializer, Serialize};

/// The fixed parts of a scope. There is one tree for each set of them.
///
/// An absent part is a value of its own ("not stated"), equal only to itself. Adapter and tenant are no part of
/// it: they enter the block hashes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The model, as it is served.
    pub model: String,
    /// Its revision.
    #[serde(default)]
    pub revision: Option<String>,
    /// The tokenizer.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// The data type of the KV cache.
    #[serde(default)]
    pub kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache, one opaque string.
    #[serde(default)]
    pub layout: Option<String>,
    /// Tokens a block.
    pub block_size: u32,
}

impl Scope {
    /// A scope of which only model and block size are stated.
    #[must_use]
    pub fn new(model: &str, block_size: u32) -> Scope {
        let (revision, tokenizer, kv_dtype, layout) = (None, None, None, None);
        Scope { model: model.to_owned(), revision, tokenizer, kv_dtype, layout, block_size }
    }

    /// Names and values of the parts in which two scopes differ, for an error that tells them apart.
    #[must_use]
    pub fn differences(scopes: &[&Scope]) -> Vec<(&'static str, Vec<Option<String>>)> {
        let part = |name, value: fn(&Scope) -> Option<String>| {
            let mut values: Vec<_> = scopes.iter().map(|scope| value(scope)).collect();
            values.sort();
            values.dedup();
            (name, values)
        };
        let parts = [
            part("model", |scope| Some(scope.model.clone())),
            part("revision", |scope| scope.revision.clone()),
            part("tokenizer", |scope| scope.tokenizer.clone()),
            part("kv_dtype", |scope| scope.kv_dtype.clone()),
            part("layout", |scope| scope.layout.clone()),
            part("block_size", |scope| Some(scope.block_size.to_string())),
        ];
        parts.into_iter().filter(|(_, values)| values.len() > 1).collect()
    }
}

/// The scope of a query: fixed parts may be left out as long as exactly one known scope fits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with parts of a scope")]
pub struct ScopeQuery {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Left out: any. `None` inside: not stated.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub revision: Option<Option<String>>,
    /// As for the revision.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Option<String>>,
    /// As for the revision.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<Option<String>>,
    /// As for the revision.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub layout: Option<Option<String>>,
    /// Tokens a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The adapter (LoRA); none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The tenant (cache namespace, salt); none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Tells a part that is null (not stated) from one that is left out (any).
fn present<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Exactly that scope, without adapter and tenant.
impl From<&Scope> for ScopeQuery {
    fn from(scope: &Scope) -> ScopeQuery {
        let Scope { model, revision, tokenizer, kv_dtype, layout, block_size } = scope.clone();
        ScopeQuery {
            model: Some(model),
            revision: Some(revision),
            tokenizer: Some(tokenizer),
            kv_dtype: Some(kv_dtype),
            layout: Some(layout),
            block_size: Some(block_size),
            adapter: None,
            tenant: None,
        }
    }
}

impl ScopeQuery {
    /// Whether a scope has all the parts that are given.
    #[must_use]
    pub fn fits(&self, scope: &Scope) -> bool {
        let stated = |wanted: &Option<Option<String>>, part: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| wanted == part)
        };
        self.model.as_ref().is_none_or(|model| *model == scope.model)
            && stated(&self.revision, &scope.revision)
            && stated(&self.tokenizer, &scope.tokenizer)
            && stated(&self.kv_dtype, &scope.kv_dtype)
            && stated(&self.layout, &scope.layout)
            && self.block_size.is_none_or(|size| size == scope.block_size)
    }

    /// The scope that has exactly these parts, and the others not stated. None without a model or a block size.
    #[must_use]
    pub fn to_scope(&self) -> Option<Scope> {
        Some(Scope {
            model: self.model.clone()?,
            revision: self.revision.clone().flatten(),
            tokenizer: self.tokenizer.clone().flatten(),
            kv_dtype: self.kv_dtype.clone().flatten(),
            layout: self.layout.clone().flatten(),
            block_size: self.block_size?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Scope, ScopeQuery};

    fn scope(model: &str, revision: Option<&str>, block_size: u32) -> Scope {
        Scope { revision: revision.map(str::to_owned), ..Scope::new(model, block_size) }
    }

    fn query(json: &str) -> ScopeQuery {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_part_that_is_given_must_be_the_scopes_and_one_left_out_may_be_any() {
        let (plain, revised) = (scope("m", None, 16), scope("m", Some("r"), 16));
        let rows = [
            ("{}", true, true),
            (r#"{"model": "m", "block_size": 16}"#, true, true),
            (r#"{"model": "m", "revision": null}"#, true, false),
            (r#"{"revision": "r"}"#, false, true),
            (r#"{"revision": ""}"#, false, false),
            (r#"{"revision": null, "layout": null, "tokenizer": null, "kv_dtype": null}"#, true, false),
            (r#"{"layout": "r"}"#, false, false),
            (r#"{"block_size": 32}"#, false, false),
            (r#"{"model": "M"}"#, false, false),
            // No parts of a scope: they enter the hashes.
            (r#"{"adapter": "a", "tenant": "t"}"#, true, true),
        ];
        for (json, fits_plain, fits_revised) in rows {
            assert_eq!(query(json).fits(&plain), fits_plain, "{json}");
            assert_eq!(query(json).fits(&revised), fits_revised, "{json}");
        }
    }

    #[test]
    fn null_survives_being_sent_on() {
        for json in ["{}", r#"{"model":"m","revision":null,"tenant":"t"}"#, r#"{"revision":"r"}"#] {
            assert_eq!(serde_json::to_string(&query(json)).unwrap(), json);
        }
    }

    #[test]
    fn only_a_model_and_a_block_size_name_a_scope_by_themselves() {
        assert_eq!(query(r#"{"model": "m"}"#).to_scope(), None);
        assert_eq!(query(r#"{"block_size": 16}"#).to_scope(), None);
        let named = query(r#"{"model": "m", "block_size": 16, "revision": "r", "tenant": "t"}"#);
        assert_eq!(named.to_scope(), Some(scope("m", Some("r"), 16)));
        let plain = query(r#"{"model": "m", "block_size": 16, "revision": null}"#);
        assert_eq!(plain.to_scope(), Some(Scope::new("m", 16)));
    }

    #[test]
    fn differences_are_the_parts_that_differ_with_each_value_once() {
        let some = |value: &str| Some(value.to_owned());
        let scopes = [scope("m", None, 16), scope("m", Some("r"), 16), scope("m", Some("r"), 32)];
        let [plain, revised, larger] = &scopes;
        let revisions = ("revision", vec![None, some("r")]);
        let sizes = ("block_size", vec![some("16"), some("32")]);
        assert_eq!(Scope::differences(&[plain]), []);
        assert_eq!(Scope::differences(&[plain, plain]), []);
        assert_eq!(Scope::differences(&[revised, plain]), std::slice::from_ref(&revisions));
        assert_eq!(Scope::differences(&[revised, larger]), std::slice::from_ref(&sizes));
        assert_eq!(Scope::differences(&[larger, revised, plain]), [revisions, sizes]);
    }
}
