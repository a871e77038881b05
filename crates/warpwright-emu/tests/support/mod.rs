//! Kernels that are written within a test.

use warpwright_emu::{LaunchConfig, LaunchError, Memory, Options, Program, Report, launch};

/// The head of every module.
pub(crate) const HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// Loads a module without its first lines.
pub(crate) fn load(body: &str) -> Program {
    Program::load(&format!("{HEADER}{body}")).unwrap_or_else(|e| panic!("{e}"))
}

/// A kernel `k(out)` whose body may use `%r`, `%rd`, `%f`, `%p`; `%rd0` holds `out`, `%r0` the thread, `%r1` the block.
pub(crate) fn kernel(body: &str) -> Program {
    load(&format!(
        ".visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n\
         .reg .f32 %f<8>;\n.shared .align 16 .b8 tile[4096];\nld.param.u64 %rd0, [out];\nmov.u32 %r0, %tid.x;\n\
         mov.u32 %r1, %ctaid.x;\n{body}\nret;\n}}\n"
    ))
}

/// Stores `%r9` at element `%ctaid.x * %ntid.x + %tid.x`.
pub(crate) const STORE: &str = "mov.u32 %r14, %ntid.x;\nmad.lo.u32 %r15, %r1, %r14, %r0;\nmul.wide.u32 %rd14, %r15, 4;\n\
                     add.u64 %rd15, %rd0, %rd14;\nst.global.u32 [%rd15], %r9;";

/// Runs `k` on a buffer with an element per thread. Gives the report and the buffer.
pub(crate) fn run(
    program: &Program,
    config: &LaunchConfig,
    options: &Options,
) -> (Result<Report, LaunchError>, Vec<u32>) {
    let memory = Memory::new();
    let threads = config.grid.iter().chain(&config.block).map(|n| u64::from(*n)).product::<u64>();
    let out = memory.alloc(4 * threads, "out").expect("memory");
    memory.fill(out, 0xEE, 4 * threads).expect("fill");
    let result = launch(program, "k", config, &out.to_le_bytes(), &memory, options);
    let mut data = vec![0; 4 * threads as usize];
    memory.read(out, &mut data).expect("read");
    (result, data.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
}
