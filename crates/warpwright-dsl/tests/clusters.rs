//! Clusters, distributed shared memory, dynamic shared memory and values of several registers in shared memory, in the
//! emulator.

mod support;

use half::bf16;
use support::{Arg, bytes, findings, run, run_with, values};
use warpwright_dsl::prelude::*;

kernel_args! {
    struct CombineArgs => CombineParams { x: In<f32>, least: Out<f32>, sum: Out<f64>, first: Out<u32> }
}

/// Three values of a thread, combined over the cluster; every thread writes what it received.
struct Combine {
    threads: u32,
    cluster: u32,
}

impl KernelDef for Combine {
    type Args = CombineArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("combine_t{}_c{}", self.threads, self.cluster), BlockDim::x(self.threads))
            .cluster(self.cluster)
    }

    fn build<'k>(&self, k: K<'k>, a: CombineParams<'k>) {
        let gather = k.all_gather();
        let at = k.global_idx_x();
        let x = a.x.at(at).get();
        let mine = (x, x.to_f64(), at.to_u32());
        let (least, sum, first) = gather.combine(mine, |a, b| (a.0.min(b.0), a.1 + b.1, a.2.min(b.2)));
        a.least.at(at).set(least);
        a.sum.at(at).set(sum);
        a.first.at(at).set(first);
    }
}

#[test]
fn a_cluster_combines_values_of_several_registers() {
    for (threads, cluster) in [(32, 1), (96, 1), (256, 1), (32, 2), (64, 4), (128, 8), (96, 16), (1024, 2)] {
        let clusters = 3;
        let group = (threads * cluster) as usize;
        let n = group * clusters;
        let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1013) as f32 - 300.0).collect();
        let (mut least, mut sum, mut first) = (vec![0; 4 * n], vec![0; 8 * n], vec![0; 4 * n]);
        let args = &mut [
            Arg::Buffer(&mut bytes(&x)),
            Arg::Buffer(&mut least),
            Arg::Buffer(&mut sum),
            Arg::Buffer(&mut first),
        ];
        let blocks = cluster * clusters as u32;
        run(&Combine { threads, cluster }, Target::sm(90), blocks, args);
        let (least, sum, first) = (values::<f32>(&least), values::<f64>(&sum), values::<u32>(&first));
        for (at, part) in x.chunks(group).enumerate() {
            let all = at * group..(at + 1) * group;
            let expected = part.iter().copied().fold(f32::INFINITY, f32::min);
            assert!(least[all.clone()].iter().all(|v| *v == expected), "{threads} x {cluster}");
            let expected: f64 = part.iter().map(|v| f64::from(*v)).sum();
            assert!(sum[all.clone()].iter().all(|v| *v == expected), "{threads} x {cluster}");
            assert!(first[all.clone()].iter().all(|v| *v == all.start as u32), "{threads} x {cluster}");
        }
    }
}

kernel_args! {
    struct RotateArgs => RotateParams { x: In<Elem>, y: Out<Elem>, ranks: Out<u32> }
}

/// Each block of a cluster of four hands its elements to the next one through dynamic shared memory.
struct Rotate {
    dtype: DType,
    /// Whether the blocks wait for each other.
    waits: bool,
}

const ROTATE_THREADS: u32 = 64;
const ROTATE_BLOCKS: u32 = 4;
/// Elements of a thread: a block moves more than the 48 KB that need no opting in.
const ROTATE_EACH: u32 = 512;

impl KernelDef for Rotate {
    type Args = RotateArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("rotate_{}_{}", self.dtype, self.waits), BlockDim::x(ROTATE_THREADS))
            .dtypes(DTypes::all(self.dtype))
            .cluster(ROTATE_BLOCKS)
    }

    fn build<'k>(&self, k: K<'k>, a: RotateParams<'k>) {
        let (rank, thread) = (k.cluster_rank(), k.thread_idx());
        let tile = k.dynamic_shared_elem(self.dtype);
        let next = tile.of_block((rank + 1) & (ROTATE_BLOCKS - 1));
        let start = k.block_idx_x().mul_wide(ROTATE_THREADS * ROTATE_EACH);
        k.cluster_arrive();
        k.cluster_wait();
        let len = k.lit(ROTATE_THREADS * ROTATE_EACH);
        k.for_each(k.range(thread * 8, len, ROTATE_THREADS * 8), |i| {
            next.at(i).store(a.x.at(start + i.to_u64()).load::<f32>(8));
        });
        k.cluster_arrive();
        if self.waits {
            k.cluster_wait();
        }
        k.for_each(k.range(thread, len, ROTATE_THREADS), |i| {
            a.y.at(start + i.to_u64()).set(tile.at(i).get::<f32>());
        });
        if !self.waits {
            k.cluster_wait();
        }
        k.if_(thread.eq(0), || a.ranks.at(k.cluster_idx_x() * ROTATE_BLOCKS + rank).set(k.block_idx_x()));
    }
}

fn rotated(waits: bool) -> (Vec<bf16>, Vec<bf16>, Vec<u32>, Vec<String>) {
    let blocks = 2 * ROTATE_BLOCKS;
    let n = (blocks * ROTATE_THREADS * ROTATE_EACH) as usize;
    let x: Vec<bf16> = (0..n).map(|i| bf16::from_f32((i % 251) as f32 - (i / 32_768) as f32)).collect();
    let (mut y, mut ranks) = (vec![0; 2 * n], vec![0; 4 * blocks as usize]);
    let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut y), Arg::Buffer(&mut ranks)];
    let def = Rotate { dtype: DType::BF16, waits };
    let found = findings(&def, Target::sm(90), blocks, 2 * ROTATE_THREADS * ROTATE_EACH, args);
    (x, values(&y), values(&ranks), found)
}

#[test]
fn blocks_of_a_cluster_write_to_each_other() {
    let (x, y, ranks, found) = rotated(true);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let per_block = (ROTATE_THREADS * ROTATE_EACH) as usize;
    for (block, part) in y.chunks(per_block).enumerate() {
        let from = block / 4 * 4 + (block + 3) % 4;
        assert_eq!(part, &x[from * per_block..][..per_block], "block {block}");
    }
    assert_eq!(ranks, (0..8).collect::<Vec<u32>>());
}

#[test]
fn a_missing_wait_is_found() {
    assert!(!rotated(false).3.is_empty());
}

kernel_args! {
    struct ReverseArgs => ReverseParams { x: In<Elem>, y: Out<Elem> }
}

/// Reverses the elements of a block in shared memory of the kernel's own type.
struct Reverse {
    dtype: DType,
    dynamic: bool,
}

impl KernelDef for Reverse {
    type Args = ReverseArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("reverse_{}_{}", self.dtype, self.dynamic), BlockDim::x(64))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: ReverseParams<'k>) {
        let (at, thread) = (k.global_idx_x(), k.thread_idx());
        let tile =
            if self.dynamic { k.dynamic_shared_elem(self.dtype) } else { k.shared_elem(self.dtype, 64) };
        accumulate!(self.dtype, |A| {
            tile.at(thread).set(a.x.at(at).get::<A>());
            k.barrier();
            a.y.at(at).set(tile.at(63 - thread).get::<A>());
        });
    }
}

#[test]
fn shared_arrays_take_the_type_of_the_kernel() {
    for dynamic in [false, true] {
        let shared = |bytes: u32| if dynamic { 64 * bytes } else { 0 };
        let x: Vec<f64> = (0..128).map(|i| f64::from(i) + 1e-9).collect();
        let mut y = vec![0; 8 * 128];
        let def = Reverse { dtype: DType::F64, dynamic };
        let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut y)];
        run_with(&def, Target::sm(75), 2, shared(8), args);
        let expected: Vec<f64> = x.chunks(64).flat_map(|part| part.iter().rev().copied()).collect();
        assert_eq!(values::<f64>(&y), expected);

        let x: Vec<bf16> = (0..128).map(|i| bf16::from_f32(i as f32)).collect();
        let mut y = vec![0; 2 * 128];
        let def = Reverse { dtype: DType::BF16, dynamic };
        let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut y)];
        run_with(&def, Target::sm(75), 2, shared(2), args);
        let expected: Vec<bf16> = x.chunks(64).flat_map(|part| part.iter().rev().copied()).collect();
        assert_eq!(values::<bf16>(&y), expected);
    }
}

#[test]
fn dynamic_shared_memory_ends_where_the_launch_says() {
    let mut x = bytes(&[1f32; 64]);
    let def = Reverse { dtype: DType::F32, dynamic: true };
    let args = &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut vec![0; 4 * 64])];
    assert!(!findings(&def, Target::sm(75), 1, 4 * 63, args).is_empty());
}

kernel_args! {
    struct SumArgs => SumParams { x: In<f32>, y: Out<f32> }
}

struct ClusterSum(u32);

impl KernelDef for ClusterSum {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("cluster_sum_{}", self.0), BlockDim::x(64)).cluster(self.0)
    }

    fn build<'k>(&self, k: K<'k>, a: SumParams<'k>) {
        let gather = k.all_gather();
        let sum = cluster_reduce(gather, Sum, a.x.at(k.global_idx_x()).get());
        k.if_(k.thread_idx().eq(0), || a.y.at(k.block_idx_x()).set(sum));
    }
}

#[test]
fn clusters_need_sm_90_and_a_size_that_exists() {
    for cluster in [1, 2, 16] {
        let x: Vec<f32> = (0..64 * 16).map(|i| i as f32).collect();
        let mut y = vec![0; 4 * 16];
        let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut y)];
        run(&ClusterSum(cluster), Target::sm(90), 16, args);
        let group = 64 * cluster as usize;
        for (block, sum) in values::<f32>(&y).into_iter().enumerate() {
            let first = block / cluster as usize * group;
            assert_eq!(sum, x[first..first + group].iter().sum::<f32>(), "block {block} of {cluster}");
        }
    }
    assert!(record(&ClusterSum(2), Target::sm(89)).is_err());
    for cluster in [0, 3, 32] {
        let error = record(&ClusterSum(cluster), Target::sm(90)).expect_err("no such cluster");
        assert!(error.to_string().contains(&format!("a cluster of {cluster} blocks")), "{error}");
    }
}
