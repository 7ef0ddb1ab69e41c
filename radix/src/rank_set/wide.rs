//! Lists the bits of a bitset sixteen at a time, where the processor has AVX-512.

#[cfg(target_arch = "x86_64")]
use pulp::{NullaryFnOnce, cast, x86::V4};

/// Bits that are listed at once. So much is written at the end, whether or not there are bits.
pub(super) const AT_ONCE: usize = 16;

/// Writes the number of every bit that is set into `room`, counted from `first`, one after the other. Returns how many
/// there are; none, and nothing is written, where the processor cannot do this.
#[cfg(target_arch = "x86_64")]
pub(super) fn list(words: &[u64], first: usize, room: &mut [u16]) -> Option<usize> {
    let simd = V4::try_new()?;
    Some(simd.vectorize(List { simd, words, first, room }))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn list(_words: &[u64], _first: usize, _room: &mut [u16]) -> Option<usize> {
    None
}

#[cfg(target_arch = "x86_64")]
struct List<'a> {
    simd: V4,
    words: &'a [u64],
    first: usize,
    room: &'a mut [u16],
}

#[cfg(target_arch = "x86_64")]
impl NullaryFnOnce for List<'_> {
    type Output = usize;

    #[inline(always)]
    fn call(self) -> usize {
        let List { simd: V4 { avx512f, .. }, words, first, room } = self;
        let lanes: [u32; AT_ONCE] = std::array::from_fn(|lane| lane as u32);
        let mut base = first;
        let mut count = 0;
        for &word in words {
            if word == 0 {
                base += u64::BITS as usize;
                continue;
            }
            for bits in cast::<u64, [u16; 4]>(word.to_le()) {
                let numbers = avx512f._mm512_add_epi32(cast(lanes), avx512f._mm512_set1_epi32(base as i32));
                let set = avx512f._mm512_maskz_compress_epi32(bits, numbers);
                let listed: [u16; AT_ONCE] = cast(avx512f._mm512_cvtepi32_epi16(set));
                room[count..count + AT_ONCE].copy_from_slice(&listed);
                count += bits.count_ones() as usize;
                base += AT_ONCE;
            }
        }
        count
    }
}
