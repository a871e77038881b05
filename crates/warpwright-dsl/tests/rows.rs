//! Skeletons of rows, columns and channels in the emulator: sums of small integers, which are exact in any order.

mod support;

use support::{Arg, bytes, run, values};
use warpwright_dsl::channels::{CHANNELS_OF_BLOCK, combine_parts};
use warpwright_dsl::prelude::*;
use warpwright_dsl::sliding::{SlidingRun, window_sums};
use warpwright_dsl::{ChannelSizesArgs, ChannelWalk};
use warpwright_ptx::ArgValue;

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37) % 23) as f32 - 11.0).collect()
}

kernel_args! {
    struct RowArgs => RowParams { x: In<f32>, sums: Out<f32>, y: Out<f32>, rows: u64, n: u64 }
}

/// The sum of each row, and the row less it: held, or in a loop.
struct Rows {
    block: u32,
    cluster: u32,
    team: u32,
    width: u32,
    /// 0: in a loop.
    vectors: u32,
}

impl KernelDef for Rows {
    type Args = RowArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("rows_{}_{}", self.team, self.vectors), BlockDim::x(self.block))
            .cluster(self.cluster)
    }

    fn build<'k>(&self, k: K<'k>, a: RowParams<'k>) {
        let team = Team::new(k, self.team);
        if self.vectors > 0 {
            let row = team.hold(a.rows, a.n, self.width, self.vectors);
            let x = row.load::<f32>(a.x, Fill::Zero);
            let sum = team.combine(row.sum(|i| x[i].lanes()), |a, b| a + b);
            row.store(a.y, x.iter().map(|x| x.lanes() - sum));
            k.if_(team.lane().eq(0) & team.row().lt(a.rows), || a.sums.at(team.row()).set(sum));
            return;
        }
        let (x, y) = (a.x.at(team.row() * a.n), a.y.at(team.row() * a.n));
        let walk = RowLoop::of_block(k, a.n, self.width, 3);
        let sums = walk.fold(Lanes::constant(k, 0.0, self.width), |round, sums| {
            round.map(|v| v.of(x, Fill::Zero).load(self.width)).fold(sums, |sums, x: Lanes<'k, f32>| sums + x)
        });
        let sum = team.combine(sums.sum().unwrap_or_else(|| k.lit(0.0)), |a, b| a + b);
        walk.each(|round| {
            for v in round.bounded() {
                let less = v.of(x, Fill::Zero).load::<f32>(self.width) - sum;
                v.of(y, Fill::Zero).store(less);
            }
        });
        k.if_(k.thread_idx().eq(0), || a.sums.at(team.row()).set(sum));
    }
}

fn check_rows(def: &Rows, rows: usize, n: usize) {
    let x = numbers(rows * n);
    let (mut sums, mut y) = (vec![0; 4 * rows], vec![0; 4 * rows * n]);
    let per_block = (def.block / def.team).max(1) as usize;
    let blocks = rows.div_ceil(per_block) as u32 * def.cluster;
    let args = &mut [
        Arg::Buffer(&mut bytes(&x)),
        Arg::Buffer(&mut sums),
        Arg::Buffer(&mut y),
        Arg::Scalar(ArgValue::U64(rows as u64)),
        Arg::Scalar(ArgValue::U64(n as u64)),
    ];
    run(def, Target::sm(90), blocks, args);
    let expected: Vec<f32> = x.chunks(n).map(|row| row.iter().sum()).collect();
    assert_eq!(values::<f32>(&sums), expected, "{rows} rows of {n}");
    let less = x.chunks(n).zip(&expected).flat_map(|(row, sum)| row.iter().map(move |x| x - sum));
    assert_eq!(values::<f32>(&y), less.collect::<Vec<f32>>(), "{rows} rows of {n}");
}

#[test]
fn teams_hold_rows() {
    let held = |block, cluster, team, width, vectors| Rows { block, cluster, team, width, vectors };
    for n in [2, 14, 30, 32, 62] {
        check_rows(&held(64, 1, 8, 2, 4), 9, n);
        check_rows(&held(64, 1, 32, 2, 1), 3, n);
    }
    for n in [4, 252, 256, 260, 512] {
        check_rows(&held(64, 1, 64, 4, 2), 3, n);
        check_rows(&held(64, 2, 128, 4, 1), 2, n);
    }
}

#[test]
fn blocks_go_over_rows_in_a_loop() {
    for n in [2, 126, 128, 130, 256, 384, 386, 900] {
        check_rows(&Rows { block: 64, cluster: 1, team: 64, width: 2, vectors: 0 }, 2, n);
    }
}

kernel_args! {
    struct ColumnArgs => ColumnParams { x: In<f32>, y: Out<f32>, n: u64, inner: u64, tiles: u32 }
}

/// `[outer, n, inner]` less the sums along `n`.
struct Columns {
    lanes: u32,
    teams: u32,
    width: u32,
    vectors: u32,
}

impl KernelDef for Columns {
    type Args = ColumnArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("columns_{}", self.vectors), BlockDim::x(self.lanes * self.teams))
    }

    fn build<'k>(&self, k: K<'k>, a: ColumnParams<'k>) {
        let tile = ColumnTile::new(k, a.inner, a.tiles, self.lanes, self.width);
        let total = |sums: Lanes<'k, f32>| {
            let [sums] = tile
                .combine([sums], |of_teams| of_teams.map(|of_teams| k.tree("a sum", of_teams, |a, b| a + b)));
            sums
        };
        let none = Lanes::constant(k, 0.0, self.width);
        if self.vectors > 0 {
            let held = tile.hold(a.n, self.vectors);
            let x = held.load::<f32>(a.x, Fill::Zero);
            let sums = total(x.iter().fold(none, |sums, x| sums + x.lanes()));
            held.store(a.y, x.iter().map(|x| x.lanes() - &sums));
            return;
        }
        let origin = tile.outer() * a.n * a.inner + tile.column();
        let (x, y) = (a.x.at(origin), a.y.at(origin));
        let walk = tile.walk(a.n, 2);
        let sums = walk.fold(none, |round, sums| {
            round.map(|v| v.of(x, Fill::Zero).load::<f32>(self.width)).fold(sums, |sums, x| sums + x)
        });
        let sums = total(sums);
        walk.each(|round| {
            for v in round {
                let less = v.of(x, Fill::Zero).load::<f32>(self.width) - &sums;
                v.of(y, Fill::Zero).store(less);
            }
        });
    }
}

#[test]
fn tiles_take_columns() {
    for (vectors, [outer, n, inner]) in [
        (2, [2, 1, 16]),
        (2, [1, 8, 2]),
        (2, [2, 9, 18]),
        (2, [3, 16, 14]),
        (0, [2, 1, 8]),
        (0, [2, 8, 18]),
        (0, [1, 33, 6]),
    ] {
        let def = Columns { lanes: 4, teams: 8, width: 2, vectors };
        let x = numbers(outer * n * inner);
        let mut y = vec![0; 4 * x.len()];
        let tiles = inner.div_ceil(8);
        let args = &mut [
            Arg::Buffer(&mut bytes(&x)),
            Arg::Buffer(&mut y),
            Arg::Scalar(ArgValue::U64(n as u64)),
            Arg::Scalar(ArgValue::U64(inner as u64)),
            Arg::Scalar(ArgValue::U32(tiles as u32)),
        ];
        run(&def, Target::sm(75), (outer * tiles) as u32, args);
        let sum = |at: usize| {
            let (outer, column) = (at / (n * inner), at % inner);
            (0..n).map(|row| x[(outer * n + row) * inner + column]).sum::<f32>()
        };
        let less: Vec<f32> = x.iter().enumerate().map(|(at, x)| x - sum(at)).collect();
        assert_eq!(values::<f32>(&y), less, "{outer} x {n} x {inner}");
    }
}

kernel_args! {
    struct ChannelArgs => ChannelParams { x: In<f32>, sums: Out<f32>, sizes: ChannelSizesArgs }
}

/// Sums of the parts of each channel, `[parts, channels]`, and of their squares behind them.
struct Channels {
    last: bool,
    reverse: bool,
}

impl KernelDef for Channels {
    type Args = ChannelArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("channels", BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, a: ChannelParams<'k>) {
        let walk = match self.last {
            true => ChannelWalk::rows(k, 2, a.sizes, self.reverse),
            false => ChannelWalk::planes(k, 2, a.sizes, self.reverse),
        };
        let add = |[sum, squares]: [Lanes<'k, f32>; 2], x: &Lanes<'k, f32>| [sum + x, x.mul_add(x, squares)];
        let none = [(); 2].map(|()| Lanes::constant(k, 0.0, 2));
        let load = |places: &[U64<'k>]| a.x.load_each::<f32>(places, 2);
        let sums = if self.reverse {
            walk.fold(4, none, |sums, at| load(at).iter().fold(sums, |sums, x| add(sums, &x.lanes())))
        } else {
            walk.fold_ahead(4, none, load, |sums, x| x.iter().fold(sums, |sums, x| add(sums, &x.lanes())))
        };
        walk.sums(sums, |channel, sums| {
            for (row, sum) in (0u64..).zip(sums) {
                let row = walk.part.to_u64() * 2 + row;
                a.sums.at(row * a.sizes.channels + channel).set(sum);
            }
        });
    }
}

#[test]
fn blocks_sum_their_parts_of_channels() {
    // Images, channels, pixels, and parts of a channel.
    for (last, [images, channels, pixels, parts]) in [
        (false, [1, 2, 40, 1]),
        (false, [3, 2, 200, 2]),
        (false, [7, 3, 6, 1]),
        (true, [5, 8, 9, 2]),
        (true, [1, 6, 300, 3]),
        (true, [2, 64, 11, 1]),
    ] {
        for reverse in [false, true] {
            let x = numbers(images * channels * pixels);
            let row = pixels / 2;
            let extent = if last { images * pixels } else { images * row };
            let divisor = row.max(1) as u64;
            let shift = 64 - (divisor - 1).leading_zeros();
            let reciprocal = (1u128 << (63 + shift)).div_ceil(u128::from(divisor)) as u64;
            let split = if last { channels / 2 } else { parts };
            let mut sums = vec![0; 4 * parts * 2 * channels];
            let args = &mut [
                Arg::Buffer(&mut bytes(&x)),
                Arg::Buffer(&mut sums),
                Arg::Scalar(ArgValue::U64(extent as u64)),
                Arg::Scalar(ArgValue::U64(extent.div_ceil(parts) as u64)),
                Arg::Scalar(ArgValue::U64(row as u64)),
                Arg::Scalar(ArgValue::U64(channels as u64)),
                Arg::Scalar(ArgValue::U32(split as u32)),
                Arg::Scalar(ArgValue::U64(reciprocal)),
                Arg::Scalar(ArgValue::U32(shift)),
            ];
            let blocks = if last { parts } else { parts * channels };
            run(&Channels { last, reverse }, Target::sm(75), blocks as u32, args);
            let sums = values::<f32>(&sums);
            for channel in 0..channels {
                let at = |image: usize, pixel: usize| match last {
                    true => (image * pixels + pixel) * channels + channel,
                    false => (image * channels + channel) * pixels + pixel,
                };
                let of = |f: fn(f32) -> f32| -> f32 {
                    (0..images)
                        .flat_map(|i| (0..pixels).map(move |p| (i, p)))
                        .map(|(i, p)| f(x[at(i, p)]))
                        .sum()
                };
                let total = |row: usize| -> f32 {
                    (0..parts).map(|part| sums[(part * 2 + row) * channels + channel]).sum()
                };
                let name = format!("channel {channel} of {images} x {channels} x {pixels}, last {last}");
                assert_eq!([total(0), total(1)], [of(|x| x), of(|x| x * x)], "{name}");
            }
        }
    }
}

kernel_args! {
    struct PartArgs => PartParams { partial: In<f32>, sums: Out<f32>, channels: u64, parts: u64 }
}

/// The sums of the columns of `[parts, channels]`.
struct Parts;

impl KernelDef for Parts {
    type Args = PartArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("parts", BlockDim::x(256))
    }

    fn build<'k>(&self, k: K<'k>, a: PartParams<'k>) {
        let load = |channel: U64<'k>, part: U64<'k>, there: Pred<'k>| -> Lanes<'k, f32> {
            there.select(a.partial.at(part * a.channels + channel).get::<f32>(), 0.0).into()
        };
        combine_parts(
            k,
            a.channels,
            a.parts,
            load,
            |a, b| a + b,
            |channel, sum| {
                a.sums.at(channel).set(sum[0]);
            },
        );
    }
}

#[test]
fn parts_of_channels_are_combined() {
    for (channels, parts) in [(1, 1), (8, 31), (9, 32), (20, 33), (3, 100)] {
        let partial = numbers(channels * parts);
        let mut sums = vec![0; 4 * channels];
        let args = &mut [
            Arg::Buffer(&mut bytes(&partial)),
            Arg::Buffer(&mut sums),
            Arg::Scalar(ArgValue::U64(channels as u64)),
            Arg::Scalar(ArgValue::U64(parts as u64)),
        ];
        run(&Parts, Target::sm(75), (channels as u32).div_ceil(CHANNELS_OF_BLOCK), args);
        let expected = |channel| (0..parts).map(|part| partial[part * channels + channel]).sum::<f32>();
        assert_eq!(values::<f32>(&sums), (0..channels).map(expected).collect::<Vec<_>>());
    }
}

kernel_args! {
    struct WindowArgs => WindowParams { x: In<f32>, y: Out<f32>, channels: u32, places: u32, tiles: u32, run: u32 }
}

/// The sum of each channel with its neighbours.
struct Windows;

impl KernelDef for Windows {
    type Args = WindowArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("windows", BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, a: WindowParams<'k>) {
        let run = SlidingRun::new(k, a.channels, a.places, a.tiles, a.run);
        k.if_(run.inside, || {
            let start = run.load_start::<f32>(a.x, 1, 0);
            let _ = k.fold(k.range(run.first, run.end, 4i32), start, |c, mut x| {
                x.extend(run.load(a.x, c + 1, 4));
                run.store(a.y, c, &window_sums(&x, 3));
                x.split_off(4)
            });
        });
    }
}

#[test]
fn windows_slide_along_channels() {
    for (channels, places) in [(1, 5), (3, 32), (4, 33), (7, 40), (8, 3)] {
        let images = 2;
        let x = numbers(images * channels * places);
        let mut y = vec![0; 4 * x.len()];
        let tiles = places.div_ceil(32);
        let args = &mut [
            Arg::Buffer(&mut bytes(&x)),
            Arg::Buffer(&mut y),
            Arg::Scalar(ArgValue::U32(channels as u32)),
            Arg::Scalar(ArgValue::U32(places as u32)),
            Arg::Scalar(ArgValue::U32(tiles as u32)),
            Arg::Scalar(ArgValue::U32(channels as u32)),
        ];
        run(&Windows, Target::sm(75), (images * tiles) as u32, args);
        let sum = |at: usize| {
            let (image, channel, place) = (at / (channels * places), at / places % channels, at % places);
            let near = channel.saturating_sub(1)..(channel + 2).min(channels);
            near.map(|c| x[(image * channels + c) * places + place]).sum::<f32>()
        };
        let expected: Vec<f32> = (0..x.len()).map(sum).collect();
        assert_eq!(values::<f32>(&y), expected, "{channels} channels of {places}");
    }
}
