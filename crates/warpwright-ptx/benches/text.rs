//! Parser and printer throughput on a large generated module: typical arithmetic, loads, stores and branches.

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warpwright_ptx::text::{parse, print};

/// About `bytes` of text in the manner of a compiler, in one kernel per 100 kB.
fn generated(bytes: usize) -> String {
    let mut text = String::from(".version 7.8\n.target sm_80\n.address_size 64\n");
    let mut kernel = 0;
    while text.len() < bytes {
        let _ = write!(
            text,
            "\n.visible .entry kernel_{kernel}(\n    .param .u64 kernel_{kernel}_param_0,\n    .param .u32 n\n)\n{{\n    \
             .reg .pred %p<2000>;\n    .reg .b32 %r<4000>;\n    .reg .f32 %f<4000>;\n    .reg .b64 %rd<4000>;\n    \
             ld.param.u64 %rd1, [kernel_{kernel}_param_0];\n    cvta.to.global.u64 %rd2, %rd1;\n"
        );
        for i in 1..500 {
            let j = i + 1;
            let _ = write!(
                text,
                "    mad.lo.s32 %r{j}, %r{i}, %r1, 16;\n    mul.wide.s32 %rd{j}, %r{j}, 4;\n    \
                 add.s64 %rd{j}, %rd2, %rd{j};\n    ld.global.nc.f32 %f{i}, [%rd{j}+128];\n    \
                 fma.rn.ftz.f32 %f{j}, %f{i}, 0f3FB8AA3B, %f{j};\n    setp.gt.s32 %p{i}, %r{j}, 1023;\n    \
                 @%p{i} bra $L__BB0_{i};\n    st.global.v2.f32 [%rd{j}], {{%f{i}, %f{j}}};\n$L__BB0_{i}:\n"
            );
        }
        text.push_str("    ret;\n}\n");
        kernel += 1;
    }
    text
}

fn throughput(c: &mut Criterion) {
    let text = generated(4 << 20);
    let parsed = parse(&text);
    assert!(parsed.diagnostics.is_empty(), "{}", parsed.diagnostics[0]);
    let mut group = c.benchmark_group("text");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("parse", |b| b.iter(|| parse(black_box(&text))));
    group.throughput(Throughput::Bytes(print(&parsed.module).len() as u64));
    group.bench_function("print", |b| b.iter(|| print(black_box(&parsed.module))));
    group.finish();
}

criterion_group!(benches, throughput);
criterion_main!(benches);
