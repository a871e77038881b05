//! Every bad line of `filetests/parse` names its errors in comments: `// error[P-NAME]: part of the message`.
//! `// kept: n` demands that n instructions survive.

use std::path::Path;

use warpwright_ptx::text::{MAX_DIAGNOSTICS, MAX_NESTING, parse, rules};
use warpwright_ptx::*;

/// `severity[rule]: text` of every expectation on a line.
fn expectations(line: &str) -> impl Iterator<Item = &str> {
    line.split("// ").skip(1).map(str::trim).filter(|s| s.starts_with("error[") || s.starts_with("warning["))
}

#[test]
fn files_report_what_their_comments_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/parse");
    let (mut files, mut problems) = (0, Vec::new());
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let parsed = parse(&text);
        let mut left = parsed.diagnostics.clone();
        for (number, line) in text.lines().enumerate() {
            for expected in expectations(line) {
                let hit = left.iter().position(|d| {
                    let (head, tail) = expected.split_once(": ").unwrap();
                    d.line as usize == number + 1
                        && format!("{}[{}]", d.severity, d.rule) == head
                        && d.message.contains(tail)
                });
                match hit {
                    Some(at) => {
                        let d = left.remove(at);
                        let end = d.column as usize - 1 + d.len as usize;
                        assert!(d.column >= 1 && end <= line.len().max(d.column as usize - 1), "{name}: {d}");
                    }
                    None => problems.push(format!("{name}:{}: missing {expected}", number + 1)),
                }
            }
        }
        problems.extend(left.iter().map(|d| format!("{name}:{d} (not expected)")));
        if let Some(kept) = text.lines().find_map(|l| l.strip_prefix("// kept: ")) {
            let blocks = parsed.module.functions.iter().flat_map(|f| &f.blocks);
            let count: usize = blocks.map(|b| b.instructions.len()).sum();
            if kept.trim().parse() != Ok(count) {
                problems.push(format!("{name}: {count} instructions are left, not {kept}"));
            }
        }
        files += 1;
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    assert!(files >= 12, "only {files} files in {}", folder.display());
}

#[test]
fn positions_point_at_the_token() {
    let parsed =
        parse(".version 7.0\n.target sm_80\n.entry k() {\n\t.reg .f32 %f;\n  add.f32 %f, %f, oops;\n}");
    let [d] = parsed.diagnostics.as_slice() else { panic!("{:?}", parsed.diagnostics) };
    assert_eq!((d.line, d.column, d.len, d.rule), (5, 19, 4, rules::NAME));
    assert_eq!(d.to_string(), "5:19: error[P-NAME]: `oops` is not declared");
}

#[test]
fn instructions_know_their_lines() {
    let parsed =
        parse(".version 7.0\n.target sm_80\n.entry k() {\n  brkpt;\n\n    @!%p brkpt; trap;\n  exit;\n}");
    assert_eq!(parsed.diagnostics.len(), 1, "the guard is not declared");
    let block = &parsed.module.functions[0].blocks[0];
    let places: Vec<_> = (0..3)
        .map(|i| match block.location(i) {
            SourceLoc::Ptx { line, column } => (line, column),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, [(4, 3), (6, 17), (7, 3)]);
}

#[test]
fn a_guarded_return_is_a_branch_over_a_block() {
    let text = ".version 7.0\n.target sm_80\n.entry k() { .reg .pred p; @!p exit; brkpt; ret; }";
    let parsed = parse(text);
    assert!(parsed.diagnostics.is_empty());
    let blocks = &parsed.module.functions[0].blocks;
    let pred = PredUse { reg: Reg(0), negated: true };
    assert_eq!(
        blocks.iter().map(|b| b.terminator.clone()).collect::<Vec<_>>(),
        [
            Terminator::Branch { pred, uniform: false, then: BlockId(1), otherwise: BlockId(2) },
            Terminator::Exit,
            Terminator::Ret
        ]
    );
    assert_eq!(blocks[2].instructions.len(), 1);
}

/// Large hostile inputs must cost time and memory in proportion to their length.
#[test]
fn hostile_sizes_are_harmless() {
    let head = ".version 7.0\n.target sm_80\n.entry k() {\n.reg .b32 %r<9>;\n.reg .pred p;\n";
    let n = 20_000;
    let nested = format!("{head}{}", "{".repeat(n));
    assert!(
        parse(&nested)
            .errors()
            .any(|d| d.rule == rules::LIMIT && d.message.contains(&MAX_NESTING.to_string()))
    );
    let cases = [
        format!("{head}{}", "}".repeat(n)),
        format!("{head}{}", "@p ".repeat(n)),
        format!("{head}{}", "add.u32 %r1, ".repeat(n)),
        format!("{head}{}", "add.u32 %r1, {;".repeat(n)),
        format!("{head}mov.b64 {{{}", "%r1, ".repeat(n)),
        format!("{head}add{} %r1, %r1, %r1;", ".rn".repeat(n)),
        format!("{head}add.{} %r1, %r1, %r1;", "x".repeat(n)),
        format!("{head}mov.u32 %r1, {};", "9".repeat(n)),
        format!("{head}mov.f32 %r1, {}.5;", "9".repeat(n)),
        format!("{head}.shared .b32 x{};", "[2]".repeat(n)),
        format!("{}{{", ".visible ".repeat(n)),
        "{".repeat(n),
        "/*".repeat(n),
        "\"".repeat(n),
        ".section .x {".repeat(n),
        ".entry k(".repeat(n),
        format!(".version 7.0\n.target sm_80\n.global .b8 x[] = {{{}", "{".repeat(n)),
    ];
    for text in &cases {
        let parsed = parse(text);
        assert!(parsed.has_errors(), "{}", &text[..80]);
        assert!(parsed.diagnostics.len() <= MAX_DIAGNOSTICS);
    }
    // Names that repeat in many scopes, and labels in all of them.
    let scopes: String =
        (0..n).map(|_| "{ .shared .b32 x; .reg .b32 %r<3>; L: @p bra L; mov.u32 %r1, x; }").collect();
    let parsed = parse(&format!("{head}{scopes}}}"));
    assert!(parsed.diagnostics.is_empty());
    let variables = &parsed.module.functions[0].variables;
    let names: std::collections::HashSet<_> = variables.iter().map(|v| &v.name).collect();
    assert_eq!((variables.len(), names.len()), (n, n));
    // Many functions that each declare as many registers as they may and use the last.
    let functions: String = (0..500)
        .map(|i| format!(".entry k{i}() {{ .reg .b32 %r<1048576>; mov.b32 %r1048575, %r0; }}\n"))
        .collect();
    let parsed = parse(&format!(".version 7.0\n.target sm_80\n{functions}"));
    assert!(parsed.diagnostics.is_empty());
    assert!(parsed.module.functions.iter().all(|f| f.registers.len() == 2));
}
