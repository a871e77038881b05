//! Which bytes of shared and global memory a copy by a tensor map moves.

use warpwright_ptx::tensor_map::{Im2col, TensorMap, TensorMode, TensorSwizzle};

/// One innermost row of a box, or the channels of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Where it begins in shared memory, from the start of the box and before swizzling.
    pub(crate) offset: u64,
    /// Where it begins in the dense box.
    pub(crate) dense: u64,
    /// Bytes of the row that lie before the tensor.
    pub(crate) before: u64,
    /// Bytes of the row inside the tensor.
    pub(crate) inside: u64,
    /// Global address of the first byte inside; meaningless if none is.
    pub(crate) address: u64,
}

/// Bytes of one row.
pub(crate) fn row_bytes(map: &TensorMap) -> u64 {
    map.extents().first().copied().unwrap_or(0) * map.element.bytes()
}

/// Bytes from one row to the next in shared memory: a swizzle keeps narrower rows apart.
pub(crate) fn row_pitch(map: &TensorMap) -> u64 {
    let width = row_bytes(map);
    if map.swizzle == TensorSwizzle::None { width } else { width.max(map.swizzle.span()) }
}

/// The rows of the box at `coordinates`, or of the pixels from there on moved by `offsets`, in the order of shared memory.
pub(crate) fn rows(map: &TensorMap, coordinates: &[i32], offsets: &[u32]) -> Vec<Row> {
    let coordinates: Vec<i64> =
        (0..map.rank()).map(|d| coordinates.get(d).copied().unwrap_or(0).into()).collect();
    match &map.mode {
        TensorMode::Tiled { .. } => box_rows(map, &coordinates),
        TensorMode::Im2col(mode) => pixel_rows(map, mode, coordinates, offsets),
    }
}

fn step(map: &TensorMap, dimension: usize) -> i64 {
    map.element_strides.get(dimension).copied().unwrap_or(1).max(1).into()
}

fn box_rows(map: &TensorMap, coordinates: &[i64]) -> Vec<Row> {
    let extents = map.extents();
    let count: u64 = extents.iter().skip(1).product();
    let mut at = coordinates.to_vec();
    (0..count)
        .map(|n| {
            let mut rest = n;
            for (d, extent) in extents.iter().enumerate().skip(1) {
                at[d] = coordinates[d] + (rest % extent) as i64 * step(map, d);
                rest /= extent;
            }
            row(map, n, &at)
        })
        .collect()
}

fn pixel_rows(map: &TensorMap, mode: &Im2col, mut at: Vec<i64>, offsets: &[u32]) -> Vec<Row> {
    let bounds: Vec<_> = map.dims.iter().skip(1).enumerate().map(|(i, n)| mode.bounds(i, *n)).collect();
    let images = at.len() - 1;
    (0..u64::from(mode.pixels))
        .map(|n| {
            let mut read = at.clone();
            for (x, offset) in read[1..].iter_mut().zip(offsets) {
                *x += i64::from(*offset);
            }
            // The walk goes by what the pixels are without offsets, and from one image to the next without an end.
            for d in 1..=images {
                at[d] += step(map, d);
                let (first, last) = bounds[d - 1];
                if d == images || at[d] <= last {
                    break;
                }
                at[d] = first;
            }
            row(map, n, &read)
        })
        .collect()
}

/// Row `n` of a copy, which begins at the element `at`.
fn row(map: &TensorMap, n: u64, at: &[i64]) -> Row {
    let (element, width) = (map.element.bytes(), row_bytes(map));
    let (first, dim) = (at[0], map.dims[0] as i64);
    // The part of the innermost dimension that exists.
    let extent = (width / element) as i64;
    let from = (-first).clamp(0, extent);
    let to = (dim - first).clamp(from, extent);
    let mut exists = to > from;
    let mut address = map.base.wrapping_add(((first + from) as u64).wrapping_mul(element));
    for (d, x) in at.iter().enumerate().skip(1) {
        exists &= *x >= 0 && *x < map.dims[d] as i64;
        address = address.wrapping_add((*x as u64).wrapping_mul(map.strides[d - 1]));
    }
    let inside = if exists { (to - from) as u64 * element } else { 0 };
    Row { offset: n * row_pitch(map), dense: n * width, before: from as u64 * element, inside, address }
}

/// The pieces of a row in shared memory: offset in the row, swizzled address, bytes. `start` is where the box begins.
pub(crate) fn pieces(
    swizzle: TensorSwizzle,
    start: u64,
    row: &Row,
    width: u64,
) -> impl Iterator<Item = (u64, u64, u64)> {
    // Swizzles move pieces of 16 bytes; without one a row is a single piece.
    let grain = if swizzle == TensorSwizzle::None { width.max(1) } else { 16 };
    let begin = start + row.offset;
    (0..width.div_ceil(grain)).map(move |i| {
        let at = i * grain;
        (at, swizzle.apply(begin + at), grain.min(width - at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpwright_ptx::tensor_map::TensorElement;

    #[test]
    fn rows_are_cut_at_the_edges_of_the_tensor() {
        let map = TensorMap::dense(0x1000, TensorElement::F32, &[10, 3], &[8, 2], TensorSwizzle::None);
        // Three columns before the tensor, and one row of two inside.
        let got = rows(&map, &[-3, 2], &[]);
        let inside = Row { offset: 0, dense: 0, before: 12, inside: 20, address: 0x1000 + 2 * 40 };
        assert_eq!(got[0], inside);
        assert_eq!((got[1].offset, got[1].inside), (32, 0));
        // Past the right edge.
        let got = rows(&map, &[6, 0], &[]);
        assert_eq!(got[1], Row { offset: 32, dense: 32, before: 0, inside: 16, address: 0x1000 + 40 + 24 });
        assert!(rows(&map, &[10, 0], &[]).iter().chain(&rows(&map, &[-8, 0], &[])).all(|r| r.inside == 0));
        assert!(
            rows(&map, &[i32::MIN, i32::MIN], &[])
                .iter()
                .chain(&rows(&map, &[i32::MAX; 2], &[]))
                .all(|r| r.inside == 0)
        );
    }

    /// Element by element, from the definition.
    #[test]
    fn five_dimensions_agree_with_the_definition() {
        let mut map = TensorMap::dense(
            0x8000,
            TensorElement::U16,
            &[24, 3, 5, 2, 4],
            &[8, 2, 4, 2, 3],
            TensorSwizzle::None,
        );
        map.strides = vec![64, 256, 2048, 4096];
        map.element_strides = vec![1, 1, 2, 1, 3];
        let c = [17, 2, -1, 1, 0];
        let (extents, es) = (map.extents(), 2u64);
        assert_eq!(extents, [8, 2, 2, 2, 1]);
        let all = rows(&map, &c, &[]);
        let mut linear = 0;
        for i3 in 0..extents[3] {
            for i2 in 0..extents[2] {
                for i1 in 0..extents[1] {
                    let row = all[linear as usize];
                    assert_eq!(row.offset, linear * 16);
                    for i0 in 0..extents[0] {
                        let x = [17 + i0 as i64, 2 + i1 as i64, -1 + 2 * i2 as i64, 1 + i3 as i64, 0];
                        let exists = x.iter().zip(&map.dims).all(|(x, d)| *x >= 0 && *x < *d as i64);
                        let at = i0 * es;
                        let says = at >= row.before && at < row.before + row.inside;
                        assert_eq!(says, exists, "{x:?}");
                        if exists {
                            let outer: i64 = (1..5).map(|d| x[d] * map.strides[d - 1] as i64).sum();
                            assert_eq!(row.address + at - row.before, (0x8000 + x[0] * 2 + outer) as u64);
                        }
                    }
                    linear += 1;
                }
            }
        }
        assert_eq!(all.len() as u64, linear);
    }

    #[test]
    fn pieces_are_swizzled_by_their_address() {
        let row = Row { offset: 128, dense: 128, before: 0, inside: 128, address: 0 };
        let got: Vec<_> = pieces(TensorSwizzle::B128, 0x400, &row, 128).collect();
        // Row 1 of a pattern that begins at 0x400: piece x goes to x ^ 1.
        assert_eq!(got[0], (0, 0x400 + 128 + 16, 16));
        assert_eq!(got[5], (80, 0x400 + 128 + 64, 16));
        // A row narrower than the swizzle keeps its distance.
        let narrow = TensorMap::dense(0, TensorElement::U8, &[64, 4], &[32, 2], TensorSwizzle::B64);
        assert_eq!(
            rows(&narrow, &[0, 0], &[]).iter().map(|r| (r.offset, r.dense)).collect::<Vec<_>>(),
            [(0, 0), (64, 32)]
        );
        let plain: Vec<_> = pieces(TensorSwizzle::None, 0x400, &row, 128).collect();
        assert_eq!(plain, [(0, 0x480, 128)]);
    }
}
