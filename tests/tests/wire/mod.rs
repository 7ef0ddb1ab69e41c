//! MessagePack made by hand.

use rmpv::Value;

/// A map with these entries, in this order.
pub(crate) fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(name, value)| (Value::from(name), value)).into())
}

/// An array of these elements.
pub(crate) fn array<T: Into<Value>>(elements: impl IntoIterator<Item = T>) -> Value {
    Value::Array(elements.into_iter().map(Into::into).collect())
}

/// The value as MessagePack.
pub(crate) fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("a vector takes everything");
    bytes
}

/// A frame of Dynamo's event plane around a payload, as the runtime writes it.
pub(crate) fn frame(publisher_id: u64, sequence: u64, published_at_ms: u64, payload: Vec<u8>) -> Vec<u8> {
    pack(&map([
        ("publisher_id", publisher_id.into()),
        ("sequence", sequence.into()),
        ("published_at", published_at_ms.into()),
        ("topic", "kv-events".into()),
        ("payload", Value::Binary(payload)),
    ]))
}

/// An engine's batch with these events.
pub(crate) fn batch(events: impl IntoIterator<Item = Value>) -> Vec<u8> {
    pack(&array([Value::from(1_700_000_000.25), array(events), Value::Nil]))
}
