//! The answer for one rank: how far into a prompt it could reuse what it holds.

use crate::Tier;

/// How many leading tokens of a prompt a rank could reuse, using a tier **and all faster ones**.
///
/// The four numbers are cumulative: `gpu <= host <= disk <= external`. Each already contains the ones before
/// it, so adding them counts the same tokens several times; for that reason there is no `Add`, no `Sum` and no
/// weighted total. To prefer faster tiers, compare `gpu` first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reach {
    tokens: [u32; 4],
}

impl Reach {
    /// No token in any tier.
    pub const NONE: Reach = Reach { tokens: [0; 4] };

    /// A reach from its tokens per tier, which must not fall from one tier to the next.
    #[must_use]
    pub(crate) fn new(tokens: [u32; 4]) -> Reach {
        debug_assert!(tokens.is_sorted(), "reach falls from a tier to a slower one: {tokens:?}");
        Reach { tokens }
    }

    /// The same reach in every tier: the rank holds nothing below the GPU that would help.
    pub(crate) fn gpu_only(tokens: u32) -> Reach {
        Reach { tokens: [tokens; 4] }
    }

    /// Tokens that can be reused with this tier and all faster ones.
    #[must_use]
    pub fn tokens(&self, tier: Tier) -> u32 {
        self.tokens[tier.index()]
    }

    /// Tokens on the GPU: the longest run of leading blocks all of which are there.
    #[must_use]
    pub fn gpu(&self) -> u32 {
        self.tokens(Tier::Gpu)
    }

    /// Tokens on the GPU or in host memory.
    #[must_use]
    pub fn host(&self) -> u32 {
        self.tokens(Tier::Host)
    }

    /// Tokens on the GPU, in host memory or on disk.
    #[must_use]
    pub fn disk(&self) -> u32 {
        self.tokens(Tier::Disk)
    }

    /// Tokens anywhere, the shared store included.
    #[must_use]
    pub fn external(&self) -> u32 {
        self.tokens(Tier::External)
    }
}
