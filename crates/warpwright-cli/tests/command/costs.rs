//! `run --counters`, `run --html` and the forms of what `run` and `lint` find.

use serde_json::{Value, json};

use crate::common::{Place, npy};

/// Reads a column of a 32 x 32 matrix into shared memory, with a stride that makes 32-way bank conflicts, and sums it up
/// in thread 0. Without the barrier that is a race.
fn column(barrier: bool) -> String {
    format!(
        ".version 7.0
.target sm_75
.address_size 64

.visible .entry column(
    .param .u64 x,
    .param .u64 y
)
{{
    .shared .align 4 .b8 tile[4096];
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;

    .loc 1 10 5
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 128;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    shl.b32 %r2, %r1, 7;
    mov.u32 %r3, tile;
    add.u32 %r3, %r3, %r2;
    .loc 1 11 5
    st.shared.f32 [%r3], %f1;
{}    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.f32 %f2, 0f00000000;
    mov.u32 %r4, tile;
    mov.u32 %r5, 0;
LOOP:
    .loc 1 15 9
    ld.shared.f32 %f3, [%r4]; // <&> \"column\"
    add.rn.f32 %f2, %f2, %f3;
    add.u32 %r4, %r4, 128;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p0, %r5, 32;
    @%p0 bra LOOP;
    st.global.f32 [%rd2], %f2;
DONE:
    ret;
}}
    .file 1 \"column.cu\"
",
        if barrier { "    bar.sync 0;\n" } else { "" }
    )
}

const RUN: [&str; 7] = [
    "run",
    "k.ptx",
    "--grid=1",
    "--block=32",
    "--device=emulator",
    "--arg=in:x.npy",
    "--arg=out:y.npy:f32:1",
];

fn place(text: &str) -> Place {
    let place = Place::new();
    place.write("k.ptx", text);
    place.write("x.npy", npy(&[0.5; 1024]));
    place
}

fn line_of(text: &str, what: &str) -> u64 {
    text.lines().position(|line| line.contains(what)).expect("the text has it") as u64 + 1
}

#[test]
fn the_listing_has_the_dear_lines_with_their_numbers() {
    let text = column(true);
    let place = place(&text);
    let ran = place.run(&[&RUN[..], &["--counters"]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let row = |what: &str| {
        let line =
            ran.out.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {}", ran.out));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let load = row("ld.global.f32");
    assert_eq!(load[0], line_of(&text, "ld.global").to_string());
    // One instruction, 32 sectors where 4 would do, all lanes.
    assert_eq!(load[1..5], ["1", "32", "28", "32.0"]);
    assert!(row("ld.global.f32").ends_with(&["<".into(), "sectors,".into(), "excess".into()]), "{}", ran.out);
    assert!(row("st.shared.f32").contains(&"column.cu:11:5".to_owned()), "{}", ran.out);
    assert!(row("st.shared.f32").contains(&"31".to_owned()));
    assert_eq!(row("add.rn.f32")[1..3], ["32", "1.0"]);
    assert!(row("all ").contains(&"33".to_owned()), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'), "no colours off a terminal");
    // A line without its cost is not listed.
    assert!(!ran.out.contains("tensor ops") && !ran.out.contains(".reg .pred"));
}

#[test]
fn the_page_is_whole_and_shows_every_line() {
    let text = column(false);
    let place = place(&text);
    let args = [&RUN[..], &["--html", "cost.html"]].concat();
    let ran = place.run(&args);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    let page = String::from_utf8(place.read("cost.html")).expect("UTF-8");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script") && !page.contains("http"), "nothing from elsewhere");
    assert_eq!(page.matches("<tr id=\"L").count(), text.lines().count());
    assert!(page.contains("&lt;&amp;&gt; &quot;column&quot;"), "the source is text");
    for id in ["instructions", "sectors", "conflicts"] {
        assert!(page.contains(&format!("id=\"by-{id}\"")), "{id}");
    }
    let load = page.lines().find(|line| line.contains("ld.global.f32")).expect("the load");
    assert!(load.contains("--sectors:1.000;") && load.contains("<td class=\"sectors\">32</td>"), "{load}");
    assert!(page.contains("racecheck/read-write"), "findings are listed");
    // Another run replaces it, and leaves nothing beside it; a page of someone else is not replaced.
    assert_eq!(place.run(&args).code, Some(1));
    assert_eq!(String::from_utf8(place.read("cost.html")).expect("UTF-8"), page);
    let theirs = page.replace("<title>Cost of", "<title>Price of");
    place.write("cost.html", &theirs);
    place.refused(&args, &["cost.html", "--force"]);
    assert_eq!(place.run(&[&args[..], &["--force"]].concat()).code, Some(1));
    assert_eq!(place.files(), ["cost.html", "k.ptx", "x.npy", "y.npy"]);
}

#[test]
fn a_race_as_json_and_as_sarif_has_both_threads() {
    let text = column(false);
    let place = place(&text);
    let ran = place.run(&[&RUN[..], &["--format", "json"]].concat());
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let finding = &value["findings"][0];
    assert_eq!((&finding["kind"], &finding["kernel"]), (&json!("read-write"), &json!("column")));
    assert_eq!(finding["line"], line_of(&text, "st.shared"));
    assert_eq!(finding["other"]["line"], line_of(&text, "ld.shared"));
    assert_eq!((&finding["column"], &finding["other"]["column"]), (&json!(5), &json!(5)));
    assert_eq!(finding["source"], json!({"file": "column.cu", "line": 11, "column": 5}));
    assert_eq!(finding["other"]["source"]["line"], 15);
    assert_eq!(finding["other"]["thread"], json!([0, 0, 0]));
    assert_eq!(finding["address"]["buffer"], "tile");
    assert!(finding["help"].as_str().is_some_and(|help| help.contains("bar")));
    let row = |what: &str| {
        let line = line_of(&text, what);
        value["lines"].as_array().expect("lines").iter().find(|row| row["line"] == line).cloned().expect(what)
    };
    assert_eq!(row("ld.global")["global_loads.sectors"], 32);
    assert_eq!(row("add.rn")["active_lanes"], 1.0);

    let ran = place.run(&[&RUN[..], &["--force", "--format", "sarif"]].concat());
    assert_eq!(ran.code, Some(1));
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let run = &value["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "racecheck/read-write");
    let result = &run["results"][0];
    let region = &result["locations"][0]["physicalLocation"]["region"];
    assert_eq!(
        (&region["startLine"], &region["startColumn"]),
        (&json!(line_of(&text, "st.shared")), &json!(5))
    );
    assert_eq!(region["endColumn"], 5 + "st.shared.f32 [%r3], %f1;".len());
    let other = &result["relatedLocations"][0];
    assert_eq!(other["physicalLocation"]["region"]["startLine"], line_of(&text, "ld.shared"));
    assert!(other["message"]["text"].as_str().is_some_and(|m| m.starts_with("thread [0, 0, 0] of block")));
}

#[test]
fn lint_speaks_sarif_too() {
    let place = place(&column(true).replace("add.rn.f32 %f2, %f2, %f3;", "add.rn.f32 %f2, %f2, %rd1;"));
    let ran = place.run(&["lint", "k.ptx", "--format", "sarif"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let run = &value["runs"][0];
    let results = run["results"].as_array().expect("results");
    let result = results.iter().find(|result| result["level"] == "error").expect("an error");
    assert_eq!(result["ruleId"], "V-TYPE-2");
    let number = result["ruleIndex"].as_u64().expect("a number") as usize;
    let rule = &run["tool"]["driver"]["rules"][number];
    assert!(
        rule["shortDescription"]["text"].as_str().is_some_and(|text| text.starts_with("A register fits"))
    );
    place.write("bad.ptx", ".version 7.0\n.target sm_75\n.address_size 64\nfoo;\n");
    let ran = place.run(&["lint", "bad.ptx", "--format", "sarif"]);
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let result = &value["runs"][0]["results"][0];
    assert!(result["ruleId"].as_str().is_some_and(|id| id.starts_with("P-")), "{result}");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 4);
    place.refused(&["lint", "k.ptx", "--json", "--format", "sarif"], &["cannot be used with"]);
}
