//! Where a rank can hold a block: a tier of memory, and the group of attention layers that the block serves.

use serde::{Deserialize, Serialize};

/// A tier of memory, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// The accelerator's own memory.
    Gpu,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// A store shared by several workers, credited to the one that announced the block.
    External,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 4] = [Tier::Gpu, Tier::Host, Tier::Disk, Tier::External];

    /// The tier's place in [`Tier::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A group of attention layers with blocks of its own. Group 0 decides the prefix; the others slide over a
/// window (hybrid attention).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Group(u8);

impl Group {
    /// The group of full attention, the only one in most models.
    pub const FULL: Group = Group(0);
    /// How many groups there can be.
    pub const LIMIT: u8 = 16;

    /// The group of that index, if it is below [`Group::LIMIT`].
    #[must_use]
    pub fn new(index: u64) -> Option<Group> {
        u8::try_from(index).ok().filter(|&index| index < Self::LIMIT).map(Group)
    }
}

/// A tier and a group: one set of blocks that a rank can hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct Layer(u8);

impl Layer {
    /// Full attention on the GPU: where nearly all blocks are.
    pub const GPU: Layer = Layer(0);
    /// How many layers there can be.
    pub const LIMIT: usize = Group::LIMIT as usize * Tier::ALL.len();

    /// The layer of a group in a tier.
    #[must_use]
    pub fn new(tier: Tier, group: Group) -> Layer {
        Layer(group.0 * 4 + tier as u8)
    }

    /// All layers, by [`Layer::index`].
    pub(crate) fn all() -> impl Iterator<Item = Layer> {
        (0..Self::LIMIT as u8).map(Layer)
    }

    /// The layer's place among all [`Layer::LIMIT`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The layer's tier.
    #[must_use]
    pub fn tier(self) -> Tier {
        Tier::ALL[usize::from(self.0 % 4)]
    }

    /// The layer's group.
    #[must_use]
    pub fn group(self) -> Group {
        Group(self.0 / 4)
    }
}

impl TryFrom<u8> for Layer {
    type Error = &'static str;

    fn try_from(index: u8) -> Result<Layer, &'static str> {
        if usize::from(index) < Self::LIMIT { Ok(Layer(index)) } else { Err("expected a layer below 64") }
    }
}

impl TryFrom<u64> for Group {
    type Error = &'static str;

    fn try_from(index: u64) -> Result<Group, &'static str> {
        Group::new(index).ok_or("expected a group below 16")
    }
}
