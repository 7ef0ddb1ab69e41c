//! The words for tiers, as the formats spell them.

use kvtide_radix::Tier;

/// Dynamo's `storage_tier`. Anything unknown is another tier: kept apart, never counted.
pub(crate) fn dynamo_tier(word: &[u8]) -> Option<Tier> {
    match word {
        b"device" => Some(Tier::Gpu),
        b"host_pinned" => Some(Tier::Host),
        b"disk" => Some(Tier::Disk),
        b"external" => Some(Tier::External),
        _ => None,
    }
}

/// An engine's `medium`, in any case; nothing and the empty string mean the GPU.
pub(crate) fn engine_tier(word: Option<&str>) -> Option<Tier> {
    const WORDS: [(&str, Tier); 14] = [
        ("", Tier::Gpu),
        ("GPU", Tier::Gpu),
        ("DEVICE", Tier::Gpu),
        ("CPU", Tier::Host),
        ("CPU_PINNED", Tier::Host),
        ("CPU_TIER1", Tier::Host),
        ("DISK", Tier::Disk),
        ("NVME", Tier::Disk),
        ("STORAGE", Tier::Disk),
        ("CPU_TIER2", Tier::Disk),
        ("EXTERNAL", Tier::External),
        ("NETWORK", Tier::External),
        ("REMOTE", Tier::External),
        ("SHARED", Tier::External),
    ];
    let word = word.unwrap_or_default();
    WORDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|&(_, tier)| tier)
}
