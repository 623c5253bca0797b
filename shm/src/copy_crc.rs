//! Copy and CRC-32 in one pass over the payload (IEEE 802.3 polynomial, zlib's convention for the running value).
//!
//! With AVX-512 and VPCLMULQDQ the bytes are folded by carry-less multiplication while they are in a register (Gopal et
//! al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009), so that the copy costs what
//! the CRC alone costs. Elsewhere the copy is followed by `crc32fast`.

/// Copies `out.len()` bytes from `source` and returns `crc` continued over the bytes as they were copied.
///
/// # Safety
/// `source` must be readable for `out.len()` bytes and not overlap `out`. Its bytes may change meanwhile.
#[inline]
pub(crate) unsafe fn copy_crc(out: &mut [u8], source: *const u8, crc: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if out.len() >= fold::BYTES_MIN && fold::available() {
        let whole = out.len() / 16 * 16;
        let (body, tail) = out.split_at_mut(whole);
        // SAFETY: the CPU has the features; `source` is readable for the body's length, which is a multiple of 16 and at
        // least 64, and does not overlap it.
        let crc = unsafe { fold::copy_crc(body, source, crc) };
        if tail.is_empty() {
            return crc;
        }
        // SAFETY: `source` is readable up to the end of the tail.
        let rest = unsafe { source.add(whole) };
        // SAFETY: as above.
        return unsafe { copy_then_crc(tail, rest, crc) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_then_crc(out, source, crc) }
}

/// Two passes; the second reads what the first wrote, so the CRC is of the bytes as copied.
///
/// # Safety
/// As [`copy_crc`].
#[inline]
unsafe fn copy_then_crc(out: &mut [u8], source: *const u8, crc: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { source.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    wire::icrc::update(crc, out)
}

/// Copies a slice and continues `crc` over it: the same work for memory that nobody else changes.
#[inline]
pub fn copy_slice_crc(out: &mut [u8], source: &[u8], crc: u32) -> u32 {
    assert_eq!(out.len(), source.len(), "source and target differ in length");
    // SAFETY: two Rust slices of one length, one of them exclusive.
    unsafe { copy_crc(out, source.as_ptr(), crc) }
}

#[cfg(target_arch = "x86_64")]
mod fold {
    use std::arch::x86_64::*;

    /// The folding loop starts with one 64-byte vector.
    pub(super) const BYTES_MIN: usize = 64;

    /// True if the CPU has what [`copy_crc`] uses (the answer is cached by the standard library).
    #[inline]
    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
    }

    /// `x^n mod P`, bit-reflected and shifted left once: the form in which reflected folding multiplies.
    const fn x_pow(n: u32) -> i64 {
        let mut remainder: u32 = 0x8000_0000;
        let mut i = 0;
        while i < n {
            remainder = if remainder & 1 != 0 { (remainder >> 1) ^ 0xEDB8_8320 } else { remainder >> 1 };
            i += 1;
        }
        (remainder as i64) << 1
    }

    /// Low and high multiplier that move a 128-bit remainder forward by `bits`.
    const fn forward(bits: u32) -> [i64; 2] {
        [x_pow(bits + 32), x_pow(bits - 32)]
    }

    const F128: [i64; 2] = forward(128);
    const F256: [i64; 2] = forward(256);
    const F384: [i64; 2] = forward(384);
    const F512: [i64; 2] = forward(512);
    const F1024: [i64; 2] = forward(1024);
    const F1536: [i64; 2] = forward(1536);
    const F2048: [i64; 2] = forward(2048);
    const F64: i64 = x_pow(64);
    /// Barrett constants of the polynomial: `floor(x^64 / P)` and `P`, reflected.
    const MU: i64 = 0x1_f701_1641;
    const POLYNOMIAL: i64 = 0x1_db71_0641;

    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    fn wide(k: [i64; 2]) -> __m512i {
        _mm512_broadcast_i32x4(narrow(k))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    fn narrow(k: [i64; 2]) -> __m128i {
        _mm_set_epi64x(k[1], k[0])
    }

    /// `a` moved forward by what `k` stands for, plus `data`; in each of four lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    fn fold_wide(a: __m512i, k: __m512i, data: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(a, k);
        let high = _mm512_clmulepi64_epi128::<0x11>(a, k);
        _mm512_ternarylogic_epi64::<0x96>(low, high, data)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    fn fold_narrow(a: __m128i, k: [i64; 2], data: __m128i) -> __m128i {
        let k = narrow(k);
        let low = _mm_clmulepi64_si128::<0x00>(a, k);
        let high = _mm_clmulepi64_si128::<0x11>(a, k);
        _mm_ternarylogic_epi64::<0x96>(low, high, data)
    }

    /// The 128-bit remainder reduced to 32 bits, by Barrett's method.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    fn reduce(x: __m128i) -> u32 {
        let low32 = _mm_set_epi32(0, 0, 0, -1);
        let folded = _mm_xor_si128(_mm_srli_si128::<8>(x), _mm_clmulepi64_si128::<0x10>(x, narrow(F128)));
        let k64 = _mm_set_epi64x(0, F64);
        let high = _mm_srli_si128::<4>(folded);
        let r = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(_mm_and_si128(folded, low32), k64), high);
        let barrett = _mm_set_epi64x(MU, POLYNOMIAL);
        let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(r, low32), barrett);
        let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low32), barrett);
        (_mm_cvtsi128_si64(_mm_xor_si128(r, product)) as u64 >> 32) as u32
    }

    /// Copies and folds whole 16-byte blocks.
    ///
    /// # Safety
    /// `source` is readable for `out.len()` bytes and does not overlap `out`; the length is a multiple of 16 and at least
    /// [`BYTES_MIN`].
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    pub(super) unsafe fn copy_crc(out: &mut [u8], source: *const u8, crc: u32) -> u32 {
        debug_assert!(out.len().is_multiple_of(16) && out.len() >= BYTES_MIN);
        let mut from = source;
        let mut to = out.as_mut_ptr();
        let mut left = out.len();
        macro_rules! take {
            ($load:ident, $store:ident, $bytes:literal) => {{
                // SAFETY: every use is guarded by `left >= $bytes`, and `from` and `to` advance together with `left`.
                unsafe {
                    let v = $load(from.cast());
                    $store(to.cast(), v);
                    from = from.add($bytes);
                    to = to.add($bytes);
                    left -= $bytes;
                    v
                }
            }};
        }
        macro_rules! take64 {
            () => {
                take!(_mm512_loadu_si512, _mm512_storeu_si512, 64)
            };
        }
        let seed = _mm512_zextsi128_si512(_mm_cvtsi32_si128((!crc).cast_signed()));
        let mut a = _mm512_xor_si512(take64!(), seed);
        if left >= 192 {
            let (mut b, mut c, mut d) = (take64!(), take64!(), take64!());
            let k = wide(F2048);
            while left >= 256 {
                a = fold_wide(a, k, take64!());
                b = fold_wide(b, k, take64!());
                c = fold_wide(c, k, take64!());
                d = fold_wide(d, k, take64!());
            }
            a = fold_wide(a, wide(F1536), d);
            a = fold_wide(c, wide(F512), a);
            a = fold_wide(b, wide(F1024), a);
        }
        let k = wide(F512);
        while left >= 64 {
            a = fold_wide(a, k, take64!());
        }
        let mut x = _mm512_extracti32x4_epi32::<3>(a);
        x = fold_narrow(_mm512_castsi512_si128(a), F384, x);
        x = fold_narrow(_mm512_extracti32x4_epi32::<1>(a), F256, x);
        x = fold_narrow(_mm512_extracti32x4_epi32::<2>(a), F128, x);
        while left >= 16 {
            x = fold_narrow(x, F128, take!(_mm_loadu_si128, _mm_storeu_si128, 16));
        }
        !reduce(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_agrees_with_crc32fast() {
        let source: Vec<u8> = (0..6000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut out = vec![0; 6000];
        for length in (0..700).chain([1023, 1024, 1500, 2048, 4095, 4096, 4097, 5000]) {
            for offset in [0, 1, 7, 16, 33] {
                let data = &source[offset..offset + length];
                let crc = copy_slice_crc(&mut out[..length], data, 0xDEAD_BEEF);
                assert_eq!(crc, wire::icrc::update(0xDEAD_BEEF, data), "length {length} offset {offset}");
                assert_eq!(&out[..length], data);
            }
        }
    }
}
