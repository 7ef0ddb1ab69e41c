//! Hashes of a JSON list, sixteen digits at a time, where the processor has AVX2.
//!
//! First all commas are looked for. A number's place waits for no other number's end then, and its last sixteen digits are where
//! it ends.

use pulp::{NullaryFnOnce, cast, x86::V3};

use super::{
    super::body::Hash,
    json::{hash, signed, trim},
};

/// The digits of the longest number. Nearly all have nearly so many.
const LONGEST: usize = 20;
/// The fewest digits of a number that is read here by itself.
const SHORTEST: usize = 17;
/// Commas in 64 bytes, at most, where numbers are so long.
const COMMAS: usize = 4;

/// Reads the list that stands between two places of a document. None if it is too short, is of any other form than numbers in a
/// row, or the processor cannot do this.
pub(super) fn read(document: &[u8], from: usize, to: usize) -> Option<Vec<Hash>> {
    let simd = V3::try_new()?;
    simd.vectorize(Read { simd, document, from, to })
}

struct Read<'a> {
    simd: V3,
    document: &'a [u8],
    from: usize,
    to: usize,
}

impl NullaryFnOnce for Read<'_> {
    type Output = Option<Vec<Hash>>;

    #[inline(always)]
    fn call(self) -> Option<Vec<Hash>> {
        let Read { document, from, .. } = self;
        // Hexadecimal digits are nothing to be gained with.
        if trim(document.get(from..self.to)?).first() == Some(&b'"') {
            return None;
        }
        let ends = self.ends()?;
        let mut hashes = vec![Hash(0); ends.len()];
        let mut long = Long::new(self.simd);
        let (mut start, mut done) = (from, 0);
        loop {
            // Nothing in it calls anything, so that all of it stays in registers.
            for (hash, &end) in hashes[done..].iter_mut().zip(&ends[done..]) {
                let end = from + end as usize;
                let Some(value) = long.read(document, start, end)? else { break };
                *hash = value;
                start = end + 1;
                done += 1;
            }
            let Some(&end) = ends.get(done) else { break };
            let end = from + end as usize;
            let (value, behind) = hash(trim(document.get(start..end)?))?;
            trim(behind).is_empty().then_some(())?;
            hashes[done] = value;
            start = end + 1;
            done += 1;
        }
        long.all_were_right().then_some(hashes)
    }
}

impl Read<'_> {
    /// Where each number ends, counted from where the list starts.
    #[inline(always)]
    fn ends(&self) -> Option<Vec<u32>> {
        let V3 { avx, avx2, .. } = self.simd;
        let list = self.document.get(self.from..self.to)?;
        let length = u32::try_from(list.len()).ok()?;
        let mut ends = vec![0; COMMAS * (list.len() / 64 + 2)];
        let commas = |bytes: [u8; 32]| {
            let found = avx2._mm256_cmpeq_epi8(cast(bytes), avx._mm256_set1_epi8(b','.cast_signed()));
            u64::from(avx2._mm256_movemask_epi8(found).cast_unsigned())
        };
        let (chunks, rest) = list.as_chunks::<64>();
        let mut count = 0;
        for (base, chunk) in (0..).step_by(64).zip(chunks) {
            let [first, second]: [[u8; 32]; 2] = cast(*chunk);
            let mut commas = commas(first) | commas(second) << 32;
            let room = ends[count..].first_chunk_mut::<COMMAS>()?;
            count += commas.count_ones() as usize;
            for end in room {
                *end = base + commas.trailing_zeros();
                commas &= commas.wrapping_sub(1);
            }
            // These are short numbers, and there is no room for them.
            if commas != 0 {
                return None;
            }
        }
        let base = length - rest.len() as u32;
        for (end, _) in (base..).zip(rest).filter(|(_, byte)| **byte == b',') {
            *ends.get_mut(count)? = end;
            count += 1;
        }
        *ends.get_mut(count)? = length;
        ends.truncate(count + 1);
        Some(ends)
    }
}

/// Reads numbers of 17 to 20 digits, and notes whether one of them was none: that is seen once, at the end.
struct Long {
    simd: V3,
    wrong: bool,
    /// The high bit of a byte: one of the first four bytes of a number was no digit.
    no_digit: u32,
    /// The most that each of the last sixteen bytes of any number was above the digit 0.
    most: [u8; 16],
}

impl Long {
    fn new(simd: V3) -> Long {
        Long { simd, wrong: false, no_digit: 0, most: [0; 16] }
    }

    /// Reads a number that ends there, perhaps behind one space. `Some(None)` if it has another length, and None where so near to
    /// an end of the document nothing can be read.
    #[inline(always)]
    fn read(&mut self, document: &[u8], start: usize, end: usize) -> Option<Option<Hash>> {
        let V3 { sse2, ssse3, sse4_1, .. } = self.simd;
        let first = u32::from_le_bytes(*document.get(start..)?.first_chunk()?);
        let bytes: &[u8; LONGEST] = document.get(end.checked_sub(LONGEST)?..end)?.first_chunk()?;
        let space = u32::from(first & 0xff == u32::from(b' '));
        let sign = u32::from(first >> (8 * space) & 0xff == u32::from(b'-'));
        let digits = (end.wrapping_sub(start) as u32).wrapping_sub(space + sign);
        let missing = (LONGEST as u32).wrapping_sub(digits);
        if missing > (LONGEST - SHORTEST) as u32 {
            return Some(None);
        }
        let [head, tail @ ..]: [u32; 5] = cast(*bytes);

        // One to four digits in front, the first one lowest, and zeros in front of them.
        let digits = (head ^ 0x3030_3030) >> (8 * missing);
        // JSON has no zeros in front.
        self.wrong |= digits & 0xff == 0;
        let digits = digits << (8 * missing);
        self.no_digit |= digits.wrapping_add(0x7676_7676) | digits;
        let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
        let head = (pairs & 0xff) * 100 + (pairs >> 16 & 0xff);
        // 2^64 has 1844 there: with more of them the product is another number.
        self.wrong |= head > 1844;

        // Sixteen behind them: in pairs, then in fours, then in eights.
        let digits = sse2._mm_xor_si128(cast(tail), sse2._mm_set1_epi8(b'0'.cast_signed()));
        self.most = cast(sse2._mm_max_epu8(cast(self.most), digits));
        let pairs = ssse3._mm_maddubs_epi16(digits, cast([[10_u8, 1]; 8]));
        let fours = sse2._mm_madd_epi16(pairs, cast([[100_u16, 1]; 4]));
        let fours = sse4_1._mm_packus_epi32(fours, fours);
        let eights = sse2._mm_madd_epi16(fours, cast([[10_000_u16, 1]; 4]));
        let [upper, lower, ..]: [u32; 4] = cast(eights);
        let tail = u64::from(upper) * 100_000_000 + u64::from(lower);

        let (value, too_large) = u64::from(head).wrapping_mul(10_u64.pow(16)).overflowing_add(tail);
        let (hash, too_small) = signed(value, u64::from(sign));
        self.wrong |= too_large | too_small;
        Some(Some(hash))
    }

    fn all_were_right(&self) -> bool {
        !self.wrong && self.no_digit & 0x8080_8080 == 0 && self.most.iter().all(|&above| above <= 9)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::{super::json, read};

    /// Reads a list both ways; where this one reads anything, it reads the same.
    fn both(list: &str) -> bool {
        let document = format!(r#"{{"model":"m","block_hashes":[{list}]}}"#);
        let (from, to) = (document.find('[').unwrap() + 1, document.len() - 2);
        let mut one_by_one = Vec::new();
        let plain = json::read_all(&document.as_bytes()[from..], json::hash, &mut one_by_one);
        let fast = read(document.as_bytes(), from, to);
        if let Some(hashes) = &fast {
            assert!(plain.is_some(), "{list} is none");
            assert_eq!(*hashes, one_by_one, "{list}");
        }
        fast.is_some()
    }

    fn list(random: &mut StdRng, between: &str) -> String {
        let number = |random: &mut StdRng| match random.random_range(0..200) {
            0 => (random.random::<u64>() >> random.random_range(0..64)).to_string(),
            1 => (random.random::<i64>() >> random.random_range(0..64)).to_string(),
            2 => format!("\"{:016x}\"", random.random::<u64>()),
            3..100 => random.random::<i64>().to_string(),
            _ => random.random::<u64>().to_string(),
        };
        let numbers = random.random_range(1..100);
        (0..numbers).map(|_| number(random)).collect::<Vec<_>>().join(between)
    }

    #[test]
    fn a_list_is_read_as_number_by_number() {
        let mut random = StdRng::seed_from_u64(1);
        let mut fast = 0;
        for between in [",", ", ", " ,", "  ,\n"] {
            for _ in 0..2000 {
                fast += usize::from(both(&list(&mut random, between)));
            }
        }
        // Spaces behind a number are left to others, and many short ones next to each other.
        assert!(fast > 3500, "{fast}");
    }

    #[test]
    fn no_number_is_read_that_is_none() {
        let numbers = [
            "18446744073709551615",
            "18446744073709551616",
            "18446744073709551620",
            "18450000000000000000",
            "99999999999999999999",
            "100000000000000000000",
            "-9223372036854775808",
            "-9223372036854775809",
            "-18446744073709551615",
            "00000000000000000001",
            "01234567890123456789",
            "1234567890123456",
            "12345678901234567",
            "1234567890123456 7",
            "123456789.12345678",
            "1234567890123456e2",
            "--2345678901234567",
            "- 12345678901234567",
            "-0",
            "0",
            "",
            "-",
            "1",
            "/1234567890123456789",
            "1234567890123456:89",
            "\u{c}12345678901234567",
            "1\u{c}",
            "\u{130}12345678901234567",
        ];
        for number in numbers {
            for list in [number.to_owned(), format!("{number},1"), format!("12345678901234567890, {number}")]
            {
                both(&list);
            }
        }
    }

    #[test]
    fn a_damaged_list_is_read_as_number_by_number_or_not_at_all() {
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..20_000 {
            let between = [",", ", "][random.random_range(0..2)];
            let mut damaged = list(&mut random, between).into_bytes();
            for _ in 0..random.random_range(1..3) {
                let at = random.random_range(0..damaged.len());
                match random.random_range(0..3) {
                    0 => damaged[at] = b" ,-0123456789:/.e\"]"[random.random_range(0..19)],
                    1 => damaged.insert(at, b" ,-0"[random.random_range(0..4)]),
                    _ => drop(damaged.remove(at)),
                }
                if damaged.is_empty() {
                    break;
                }
            }
            both(&String::from_utf8(damaged).unwrap());
        }
    }
}
