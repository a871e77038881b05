//! Tensor-core products from swizzled tiles filled by asynchronous copies, in the emulator with every sanitizer on, held
//! against products in f64; shared memory without bank conflicts, by the counters.

mod support;

use half::{bf16, f16};
use support::{Arg, bytes, report, values};
use warpwright_dsl::prelude::*;
use warpwright_emu::Counters;
use warpwright_ptx::ArgValue;
use warpwright_ptx::float16::{bf16_bits, f16_bits};

kernel_args! {
    struct ProductArgs => ProductParams {
        a: In<Elem>, b: In<Elem>, c: Out<Elem>, m: u32, n: u32, depth: u32, lda: u64, ldb: u64
    }
}

/// One block computes the product of an A and a B that fit its tile of `rows` x `cols`, `slice` deep at a time.
#[derive(Clone, Copy)]
struct Product {
    atom: MmaAtom,
    a: Major,
    b: Major,
    rows: u32,
    cols: u32,
    slice: u32,
    stages: u32,
    piece: u32,
    /// Whether bounds are given, so that sizes need not be the tile's.
    bounded: bool,
}

/// Warps of the block: two along the rows, two along the columns.
const WARPS: u32 = 4;

impl Product {
    fn layouts(&self) -> (TileLayout, TileLayout) {
        let layout = |major, outer| match major {
            Major::K => TileLayout::new(self.atom.dtype(), outer, self.slice),
            Major::Mn => TileLayout::new(self.atom.dtype(), self.slice, outer),
        };
        (layout(self.a, self.rows), layout(self.b, self.cols))
    }

    fn stages(&self) -> Stages {
        let (a, b) = self.layouts();
        Stages { count: self.stages, bytes: a.bytes() + b.bytes() }
    }

    fn body<'k, A: Float>(&self, k: K<'k>, p: ProductParams<'k>)
    where
        Elem: Access<A>,
    {
        let (atom, slice) = (self.atom, self.slice);
        let (layout_a, layout_b) = self.layouts();
        let stages = self.stages();
        let tile_a = k.tile_at(k.dynamic_shared_elem(atom.dtype()), layout_a);
        let tile_b = k.tile_at(k.dynamic_shared_elem(atom.dtype()), layout_b).moved(layout_a.bytes());
        let team = (k.thread_idx(), k.block_threads());
        let copy_a = k.tile_copy(tile_a, p.a, p.lda, self.piece, team);
        let copy_b = k.tile_copy(tile_b, p.b, p.ldb, self.piece, team);

        let (warp_rows, warp_cols) = (self.rows / 2, self.cols / 2);
        let (row, col) = ((k.warp_idx() >> 1) * warp_rows, (k.warp_idx() & 1) * warp_cols);
        let read_a = tile_a.reader_a(atom, self.a, row);
        let read_b = tile_b.reader_b(atom, self.b, col);
        let (down, across) = (warp_rows / atom.m(), warp_cols / atom.n());
        let zero = || Accumulator::<A>::zero(k, atom);
        let init: Vec<Vec<_>> = (0..down).map(|_| (0..across).map(|_| zero()).collect()).collect();

        let steps = (p.depth + (slice - 1)) / slice;
        let start = |step: U32<'k>, stage: U32<'k>, there| {
            let first = step * slice;
            let left = p.depth - first;
            let side = |copy: TileCopy<'k>, major, outer: U32<'k>, leading: U64<'k>| {
                let (at, rows, cols) = match major {
                    Major::K => (first.to_u64(), outer, left),
                    Major::Mn => (first.to_u64() * leading, left, outer),
                };
                let some = |bound| self.bounded.then_some(bound);
                copy.advanced(at).start(stage, Bounds { rows: some(rows), cols: some(cols) }, Some(there));
            };
            side(copy_a, self.a, p.m, p.lda);
            side(copy_b, self.b, p.n, p.ldb);
        };
        let sums = k.pipeline(stages, steps, start, init, |_, stage, mut sums| {
            let (read_a, read_b) = (read_a.moved(stage), read_b.moved(stage));
            for depth in (0..slice).step_by(atom.k() as usize) {
                let a: Vec<_> = (0..down).map(|i| read_a.load(i * atom.m(), depth)).collect();
                for j in 0..across / 2 {
                    let pair = read_b.load_pair(j * 16, depth);
                    for (i, a) in a.iter().enumerate() {
                        for (half, b) in pair.iter().enumerate() {
                            let sum = &mut sums[i][2 * j as usize + half];
                            *sum = sum.mma(a, b);
                        }
                    }
                }
            }
            sums
        });
        let (lane_row, lane_col) = k.accumulator_origin();
        let (row, col) = (row + lane_row, col + lane_col);
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                for ((r, c), v) in sum.offsets().zip(sum.lanes().iter()) {
                    let (r, c) = (row + (i as u32 * atom.m() + r), col + (j as u32 * atom.n() + c));
                    let at = p.c.at(r.to_u64() * p.n.to_u64() + c.to_u64());
                    k.if_(r.lt(p.m) & c.lt(p.n), || at.set(v));
                }
            }
        }
    }
}

impl KernelDef for Product {
    type Args = ProductArgs;

    fn spec(&self) -> KernelSpec {
        let sums = if self.atom.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        KernelSpec::new("product".to_owned(), BlockDim::x(32 * WARPS))
            .dtypes(DTypes::all(self.atom.dtype()).with("c", sums))
    }

    fn build<'k>(&self, k: K<'k>, p: ProductParams<'k>) {
        match self.atom {
            MmaAtom::F64 | MmaAtom::F64Deep => self.body::<f64>(k, p),
            _ => self.body::<f32>(k, p),
        }
    }
}

/// Small numbers that every type holds exactly, so that sums are exact in any order.
fn number(seed: usize) -> f64 {
    ((seed * 7919 + seed / 13) % 17) as f64 - 8.0
}

fn encoded(dtype: DType, xs: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F16 => bytes(&xs.iter().map(|x| f16::from_bits(f16_bits(*x))).collect::<Vec<_>>()),
        DType::BF16 => bytes(&xs.iter().map(|x| bf16::from_bits(bf16_bits(*x))).collect::<Vec<_>>()),
        DType::F32 => bytes(&xs.iter().map(|x| *x as f32).collect::<Vec<_>>()),
        _ => bytes(xs),
    }
}

/// Runs the product of `m` x `depth` and `depth` x `n`, whose rows in memory are `pad` elements longer than they need be.
fn check(def: Product, target: Target, sizes: (usize, usize, usize), pad: usize) -> Counters {
    let kernel = record(&def, target).unwrap_or_else(|e| panic!("{e}"));
    check_text(def, &kernel, kernel.text(), sizes, pad).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// The same of a text that may have been changed; says what is wrong.
fn check_text(
    def: Product,
    kernel: &Kernel,
    text: &str,
    (m, n, depth): (usize, usize, usize),
    pad: usize,
) -> Result<Counters, String> {
    let stored = |major, outer: usize| match major {
        Major::K => (outer, depth),
        Major::Mn => (depth, outer),
    };
    let matrix = |major, outer, salt: usize| {
        let (rows, cols) = stored(major, outer);
        let leading = cols + pad;
        // What lies between the rows must not be read: it would spoil the sums.
        let value = |i: usize| if i % leading < cols { number(i + salt) } else { f64::NAN };
        (leading, (0..rows * leading).map(value).collect::<Vec<f64>>())
    };
    let ((lda, a), (ldb, b)) = (matrix(def.a, m, 3), matrix(def.b, n, 1000));
    let at = |xs: &[f64], major, leading: usize, outer: usize, depth: usize| match major {
        Major::K => xs[outer * leading + depth],
        Major::Mn => xs[depth * leading + outer],
    };
    let dtype = def.atom.dtype();
    let size = if dtype == DType::F64 { 8 } else { 4 };
    let mut c = vec![0; m * n * size];
    let (mut bytes_a, mut bytes_b) = (encoded(dtype, &a), encoded(dtype, &b));
    let args = &mut [
        Arg::Buffer(&mut bytes_a),
        Arg::Buffer(&mut bytes_b),
        Arg::Buffer(&mut c),
        Arg::Scalar(ArgValue::U32(m as u32)),
        Arg::Scalar(ArgValue::U32(n as u32)),
        Arg::Scalar(ArgValue::U32(depth as u32)),
        Arg::Scalar(ArgValue::U64(lda as u64)),
        Arg::Scalar(ArgValue::U64(ldb as u64)),
    ];
    let report = report(&def, kernel, text, 1, def.stages().total_bytes(), args);
    let findings: Vec<String> =
        report.findings.iter().map(|f| f.render(Some(kernel.lines()), kernel.text())).collect();
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    let c: Vec<f64> = match size {
        8 => values(&c),
        _ => values::<f32>(&c).into_iter().map(f64::from).collect(),
    };
    for row in 0..m {
        for col in 0..n {
            let want: f64 = (0..depth).map(|d| at(&a, def.a, lda, row, d) * at(&b, def.b, ldb, col, d)).sum();
            if c[row * n + col] != want {
                return Err(format!("{row}, {col}: {}, not {want}", c[row * n + col]));
            }
        }
    }
    Ok(report.counters)
}

const BASE: Product = Product {
    atom: MmaAtom::BF16,
    a: Major::K,
    b: Major::K,
    rows: 64,
    cols: 64,
    slice: 64,
    stages: 3,
    piece: 16,
    bounded: false,
};

const ORIENTATIONS: [(Major, Major); 4] =
    [(Major::K, Major::K), (Major::K, Major::Mn), (Major::Mn, Major::K), (Major::Mn, Major::Mn)];

#[test]
fn products_of_every_orientation_meet_no_bank_conflict() {
    for (a, b) in ORIENTATIONS {
        // Rows of 32 bytes to 256, and of 96, which are apart by an odd number of chunks.
        for (slice, outer) in [(16, 64), (32, 32), (64, 64), (64, 128), (128, 64), (48, 64)] {
            let def = Product { a, b, slice, rows: outer, cols: outer, stages: 2, ..BASE };
            // The threads of a copy are a power of two to a row.
            if slice == 48 && (a, b) != (Major::Mn, Major::Mn) {
                continue;
            }
            let counters =
                check(def, Target::sm(80), (outer as usize, outer as usize, 2 * slice as usize), 0);
            assert_eq!(counters.bank_conflicts(), 0, "{a:?} {b:?} {slice}");
            assert!(counters.tensor_operations > 0);
        }
    }
}

#[test]
fn sixteen_bit_products_run_on_every_architecture() {
    for (a, b) in ORIENTATIONS {
        for (atom, target) in
            [(MmaAtom::F16, 75), (MmaAtom::F16, 80), (MmaAtom::BF16, 80), (MmaAtom::BF16, 90)]
        {
            let def = Product { atom, a, b, slice: 32, ..BASE };
            check(def, Target::sm(target), (64, 64, 96), 8);
        }
    }
}

#[test]
fn single_and_double_precision_products() {
    for (a, b) in ORIENTATIONS {
        for (atom, target) in [(MmaAtom::F64, 80), (MmaAtom::F64Deep, 90)] {
            let def = Product { atom, a, b, rows: 32, cols: 64, slice: 16, ..BASE };
            let counters = check(def, Target::sm(target), (32, 64, 48), 2);
            assert_eq!(counters.bank_conflicts(), 0, "{atom:?} {a:?} {b:?}");
        }
    }
    let def = Product { atom: MmaAtom::Tf32, slice: 32, ..BASE };
    assert_eq!(check(def, Target::sm(80), (64, 64, 96), 4).bank_conflicts(), 0);
}

#[test]
fn bounds_cut_tiles_short_at_every_side() {
    for (a, b) in ORIENTATIONS {
        for (sizes, pad, piece) in [
            ((64, 64, 64), 0, 16),
            ((40, 56, 72), 8, 16),
            ((33, 17, 41), 7, 2),
            ((1, 1, 1), 1, 2),
            ((1, 63, 130), 2, 4),
            ((64, 8, 0), 4, 8),
        ] {
            // Rows that start at a multiple of the piece: the padded length is one.
            let (m, n, depth) = sizes;
            let odd =
                |major, outer: usize| (if major == Major::K { depth } else { outer } + pad) * 2 % piece != 0;
            if odd(a, m) || odd(b, n) {
                continue;
            }
            let def = Product { a, b, piece: piece as u32, bounded: true, slice: 32, ..BASE };
            check(def, Target::sm(80), sizes, pad);
        }
        let def = Product { atom: MmaAtom::F16, a, b, bounded: true, slice: 32, ..BASE };
        check(def, Target::sm(75), (40, 56, 72), 8);
    }
}

#[test]
fn every_wait_of_a_pipeline_is_needed() {
    for stages in [2, 3] {
        let def = Product { slice: 32, stages, ..BASE };
        let kernel = record(&def, Target::sm(80)).unwrap_or_else(|e| panic!("{e}"));
        let waits = |line: &&str| line.contains("bar.sync") || line.contains("cp.async.wait_group");
        let lines: Vec<&str> = kernel.text().lines().collect();
        let places: Vec<usize> = (0..lines.len()).filter(|&at| waits(&lines[at])).collect();
        assert_eq!(places.len(), 2);
        for place in places {
            let without = [&lines[..place], &lines[place + 1..]].concat().join("\n");
            let found = check_text(def, &kernel, &without, (64, 64, 160), 0);
            assert!(found.is_err(), "{stages} stages do without {}", lines[place]);
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_issues() {
    let bad = [
        Product { slice: 60, ..BASE },
        Product { stages: 1, ..BASE },
        Product { piece: 3, ..BASE },
        Product { atom: MmaAtom::Tf32, a: Major::Mn, ..BASE },
    ];
    for def in bad {
        assert!(record(&def, Target::sm(80)).is_err(), "{}", def.slice);
    }
}

kernel_args! {
    struct ChainArgs => ChainParams { a: In<BF16>, b: In<Elem>, c: Out<f32> }
}

/// `(a b) b` for 16 x 16 matrices: the first product becomes the A of the second in registers.
struct Chain(MmaAtom);

impl KernelDef for Chain {
    type Args = ChainArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("chain".to_owned(), BlockDim::x(32)).dtypes(DTypes::all(self.0.dtype()))
    }

    fn build<'k>(&self, k: K<'k>, p: ChainParams<'k>) {
        let atom = self.0;
        let tile = k.shared_tile(TileLayout::new(atom.dtype(), 16, 16));
        let copy = k.tile_copy(tile, p.b, k.lit(16u64), 16, (k.thread_idx(), 32));
        copy.start(0, Bounds::default(), None);
        k.commit_copies();
        k.wait_copies(0);
        k.barrier();
        // A element by element, through the places of the accumulator.
        let (row, col) = k.accumulator_origin();
        let zero = Accumulator::<f32>::zero(k, atom);
        let of = |right: u32| {
            let at = |r, c| p.a.at((row + r) * 16 + (col + (c + right))).get();
            zero.map(|r, c, _| at(r, c))
        };
        let a = Fragment::from_accumulators(atom, &of(0), &of(8));
        let b = tile.reader_b(atom, Major::Mn, k.lit(0u32)).load_pair(0, 0);
        let first: Vec<_> = b.iter().map(|b| zero.mma(&a, b)).collect();
        let a = Fragment::from_accumulators(atom, &first[0], &first[1]);
        for (i, b) in b.iter().enumerate() {
            let sum = zero.mma(&a, b);
            for ((r, c), v) in sum.offsets().zip(sum.lanes().iter()) {
                p.c.at((row + r) * 16 + (col + (c + 8 * i as u32))).set(v);
            }
        }
    }
}

#[test]
fn an_accumulator_is_the_left_operand_of_the_next_product() {
    for (atom, target) in [(MmaAtom::F16, 75), (MmaAtom::F16, 80), (MmaAtom::BF16, 80)] {
        // Sums of few ones stay exact in eight bits.
        let a: Vec<f64> = (0..256).map(|i| f64::from(u8::from(i * 7 % 11 == 0))).collect();
        let b: Vec<f64> =
            (0..256).map(|i| f64::from(u8::from(i * 5 % 13 < 2)) - f64::from(u8::from(i % 9 == 4))).collect();
        let product = |x: &[f64], y: &[f64]| -> Vec<f64> {
            let sum = |i: usize| (0..16).map(|d| x[i / 16 * 16 + d] * y[d * 16 + i % 16]).sum();
            (0..256).map(sum).collect()
        };
        let want = product(&product(&a, &b), &b);
        let mut c = vec![0; 4 * 256];
        let (mut bytes_a, mut bytes_b) = (encoded(DType::BF16, &a), encoded(atom.dtype(), &b));
        let args = &mut [Arg::Buffer(&mut bytes_a), Arg::Buffer(&mut bytes_b), Arg::Buffer(&mut c)];
        support::run(&Chain(atom), Target::sm(target), 1, args);
        let c: Vec<f64> = values::<f32>(&c).into_iter().map(f64::from).collect();
        assert_eq!(c, want);
    }
}
