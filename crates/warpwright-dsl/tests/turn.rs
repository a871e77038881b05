//! Tiles of 32-bit elements that warps turn in shared memory, in the emulator with every sanitizer on: places, what is split, bank conflicts.

mod support;

use support::{Arg, bytes, report, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, record};

kernel_args! {
    struct TurnArgs => TurnParams { x: In<f32>, y: Out<f32>, low: Out<f32> }
}

/// Warps of the block, the last of which turns nothing.
const WARPS: u32 = 4;
const OUTER: u32 = 96;
const TILE: PanelTile = PanelTile { dtype: DType::F32, major: Major::K, outer: OUTER, depth: 32 };
const FACTOR: f64 = 4096.0;

/// One block places a matrix of 32 rows of [`OUTER`] elements as copies leave it, turns it, and gives it back by columns.
#[derive(Clone, Copy)]
struct Turn {
    splits: bool,
}

impl KernelDef for Turn {
    type Args = TurnArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("turn".to_owned(), BlockDim::x(WARPS * 32))
    }

    fn build<'k>(&self, k: K<'k>, p: TurnParams<'k>) {
        let at = k.dynamic_shared_tiles();
        let low = at + TILE.bytes();
        let each = |f: &dyn Fn(U32<'k>)| {
            k.for_each(k.range(k.thread_idx() * 4, TILE.depth * OUTER, WARPS * 32 * 4), f);
        };
        // Panels of 32 rows of 32 elements, before and behind.
        let panels = k.tile_from(at, TileLayout::new(DType::F32, OUTER, 32));
        each(&|i| {
            let (row, col) = (i / OUTER, i % OUTER);
            panels.at(col / 32 * 32 + row, col % 32).store(p.x.at(i.to_u64()).load::<f32>(4));
        });
        k.barrier();
        k.if_(k.warp_idx().lt(WARPS - 1), || {
            let share = (k.warp_idx(), WARPS - 1);
            if self.splits { TILE.turn_split(at, (low, FACTOR), share) } else { TILE.turn(at, share) }
        });
        k.barrier();
        let back = |from: U32<'k>, to: Ptr<'k, Write, f32>| {
            let tile = k.tile_from(from, TileLayout::new(DType::F32, OUTER, 32));
            each(&|i| to.at(i.to_u64()).store(tile.at(i / 32, i % 32).load::<f32>(4)));
        };
        back(at, p.y);
        if self.splits {
            back(low, p.low);
        }
    }
}

/// The result of a turn of `x`, and the rest of its elements.
fn turned(splits: bool, x: &[f32]) -> [Vec<f32>; 2] {
    let def = Turn { splits };
    let kernel = record(&def, Target::sm(80)).unwrap_or_else(|e| panic!("{e}"));
    let (mut x, mut y) = (bytes(x), vec![0; x.len() * 4]);
    let mut low = y.clone();
    let args = &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut y), Arg::Buffer(&mut low)];
    let report = report(&def, &kernel, kernel.text(), 1, K::TILE_SLACK + 2 * TILE.bytes(), args);
    assert_eq!(report.findings, []);
    assert_eq!(report.counters.bank_conflicts(), 0);
    [values(&y), values(&low)]
}

const LEN: usize = (TILE.depth * OUTER) as usize;

/// The place of element `i` of a matrix of columns in one of rows.
fn across(i: usize) -> usize {
    i % TILE.depth as usize * OUTER as usize + i / TILE.depth as usize
}

#[test]
fn columns_become_rows_without_bank_conflicts() {
    let x: Vec<f32> = (0..LEN).map(|i| i as f32 + 0.5).collect();
    let [y, _] = turned(false, &x);
    let want: Vec<f32> = (0..LEN).map(|i| x[across(i)]).collect();
    assert_eq!(y, want);
}

#[test]
fn elements_are_split_as_they_are_turned() {
    let x: Vec<f32> = (0..LEN).map(|i| ((i as f32) * 0.731).sin() * 10f32.powi(i as i32 % 60 - 30)).collect();
    let [high, low] = turned(true, &x);
    for i in 0..LEN {
        let x = x[across(i)];
        assert_eq!(high[i].to_bits() % (1 << 13), 0, "{x}: {}", high[i]);
        // Within half of what `tf32` tells apart, and no bit is lost.
        assert!((x - high[i]).abs() <= x.abs() * 2f32.powi(-11), "{x}: {}", high[i]);
        assert_eq!(f64::from(high[i]) + f64::from(low[i]) / FACTOR, f64::from(x));
    }
}
