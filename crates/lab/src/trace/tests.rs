#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::io::Cursor;

use super::*;
use crate::plan::{Begin, Plan};
use crate::workload::named;

fn lines(text: &str) -> Lines<Box<dyn BufRead + Send>> {
    Lines::new(Box::new(Cursor::new(text.as_bytes().to_vec())))
}

fn rows_of(text: &str, format: Option<Format>) -> Result<(Format, Vec<Row>), TraceError> {
    let mut rows = Vec::new();
    let reading = Reading::default();
    let (format, block) = read(lines(text), format, &reading, &mut |row| {
        rows.push(row);
        Ok(())
    })?;
    assert!(rows.iter().all(|row| row.block == block));
    Ok((format, rows))
}

fn rows(text: &str) -> (Format, Vec<Row>) {
    rows_of(text, None).unwrap()
}

fn wrong(text: &str) -> String {
    rows_of(text, None).unwrap_err().to_string()
}

fn stats(text: &str) -> Stats {
    let mut reader = StatsReader::default();
    let (format, rows) = rows(text);
    rows.iter().for_each(|row| reader.take(row));
    reader.finish(format, rows[0].block)
}

fn plan(text: &str) -> Plan {
    let mut reader = PlanReader::new(Arrivals::default(), usize::MAX);
    let (_, rows) = rows(text);
    let block = rows[0].block;
    rows.into_iter().for_each(|row| reader.take(row).unwrap());
    reader.plan(block, 1)
}

const MOONCAKE: &str = r#"
{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[0,1,2]}
{"timestamp":0,"input_length":1024,"output_length":6,"hash_ids":[0,9]}

{"timestamp":3000,"input_length":1700,"output_length":7,"hash_ids":[0,1,3,4]}
"#;

#[test]
fn mooncake_times_are_spread_and_sessions_inferred() {
    let (format, rows) = rows(MOONCAKE);
    assert_eq!(format, Format::Mooncake);
    let told: Vec<_> = (rows.iter())
        .map(|row| (row.line, row.at.unwrap(), row.session.unwrap(), row.partial))
        .collect();
    // Two at 0 s, the next at 3 s: 1.5 s apart. The third begins with all but the last block of the first.
    assert_eq!(
        told,
        [(2, 0.0, 0, true), (3, 1.5, 1, false), (5, 3.0, 0, true)]
    );
    let stats = stats(MOONCAKE);
    let reuse = stats.reuse.unwrap();
    // The second finds block 0, the third blocks 0 and 1 of its own session: 512 + 1,024 of 3,824.
    assert_eq!(
        (stats.requests, stats.sessions, reuse.tokens),
        (3, 2, 3_824)
    );
    assert!((reuse.share - 1_536.0 / 3_824.0).abs() < 1e-9);
    assert!((reuse.intra - 1_024.0 / 1_536.0).abs() < 1e-9);
    assert_eq!((reuse.blocks, reuse.requests), (6, 2.0 / 3.0));
}

#[test]
fn follow_ups_of_timed_traces_wait_for_their_answer_and_their_time() {
    let plan = plan(MOONCAKE);
    assert_eq!(plan.sessions, [0, 2]);
    assert_eq!(plan.block_tokens, 512);
    // Full blocks only.
    let blocks: Vec<usize> = plan.requests.iter().map(|r| r.ids().count()).collect();
    assert_eq!(blocks, [2, 3, 2]);
    assert!(matches!(
        plan.requests[1].begin,
        Begin::After { needs: 1, no_sooner, .. } if no_sooner.0 == 3_000_000_000
    ));
}

#[test]
fn starts_may_be_drawn_although_the_trace_has_times() {
    let arrivals = Arrivals {
        drawn: true,
        pause: 7.0,
        ..Arrivals::default()
    };
    let mut reader = PlanReader::new(arrivals, 2);
    for row in rows(MOONCAKE).1.into_iter().rev() {
        reader.take(row).unwrap();
    }
    assert_eq!(reader.left_out(), 1);
    let (one, other) = (reader.plan(512, 1), reader.plan(512, 2));
    assert_ne!(
        one.requests[0].begin, other.requests[0].begin,
        "by the seed"
    );
    assert!(one.requests.iter().all(|r| matches!(r.begin, Begin::At(_))));
}

#[test]
fn bailian_sessions_follow_their_parents() {
    let text = r#"{"chat_id":7,"parent_chat_id":-1,"timestamp":1.5,"input_length":40,"output_length":9,"type":"text","turn":1,"hash_ids":[1,2,3]}
{"chat_id":8,"parent_chat_id":99,"timestamp":2,"input_length":16,"output_length":9,"type":"file","turn":2,"hash_ids":[4]}
{"chat_id":9,"parent_chat_id":7,"timestamp":3,"input_length":64,"output_length":9,"type":"text","turn":2,"hash_ids":[1,2,5,6]}"#;
    let (format, rows) = rows(text);
    assert_eq!(format, Format::Bailian);
    let sessions: Vec<u64> = rows.iter().map(|row| row.session.unwrap()).collect();
    assert_eq!(sessions, [0, 1, 0]);
    assert_eq!(
        (rows[0].partial, rows[1].partial, rows[1].group.as_str()),
        (true, false, "file")
    );
}

const BLOCKS: &str = r#"{"id":"a","block_size":64,"requests":[{"t":0.0,"type":"n","in":200,"out":5,"think_time":0,"api_time":2.0,"runs":[[1,3]]},{"t":5.0,"type":"subagent","requests":[{"t":0,"type":"n","in":70,"out":6,"hash_ids":[50]}]},{"t":9.0,"type":"n","in":300,"out":7,"think_time":7.0,"runs":[[1,2],[9,2]]}]}
{"id":"b","block_size":64,"requests":[{"t":0,"in":200,"out":5,"runs":[[1,3]]}]}"#;

#[test]
fn block_sessions_have_pauses_and_ids_of_their_own() {
    let (format, rows) = rows(BLOCKS);
    assert_eq!(format, Format::Blocks);
    let told: Vec<_> = (rows.iter())
        .map(|row| (row.session.unwrap(), row.pause, row.called_by, row.blocks()))
        .collect();
    // The sub-agent begins 3 s after the first answer, and nobody waits for it.
    assert_eq!(
        told,
        [
            (0, None, None, 3),
            (1, Some(3.0), Some(0), 1),
            (0, Some(7.0), None, 4),
            (2, None, None, 3)
        ]
    );
    assert_ne!(
        rows[0].spans, rows[3].spans,
        "ids of two lines are never compared"
    );
    let plan = plan(BLOCKS);
    assert_eq!(plan.requests[0].also[..], [2]);
    assert!(matches!(
        plan.requests[1].begin,
        Begin::After { needs: 1, .. }
    ));
    assert!(
        matches!(plan.requests[3].begin, Begin::At(_)),
        "a start that is drawn"
    );
    let stats = stats(BLOCKS);
    assert_eq!((stats.requests, stats.sessions, stats.called), (4, 3, 1));
    assert_eq!(stats.pauses.unwrap().mean, 7.0);
    assert_eq!(stats.shape, None);
}

#[test]
fn parts_of_prompts_become_blocks_that_stand_for_all_before() {
    let line = |system: &str, passages: &str| {
        format!(
            r#"{{"timestamp":"3","input_length":64,"output_length":2,"hash_ids":{{"sys_prompt":{system},"passages_ids":{passages}}},"session_id":"x"}}"#
        )
    };
    let text = [line("[1]", "[2]"), line("[1]", "[3]"), line("[4]", "[2]")].join("\n");
    let (format, rows) = rows(&text);
    assert_eq!(format, Format::RagPulse);
    let ids: Vec<Vec<u64>> = rows.iter().map(|row| row.ids().collect()).collect();
    // Two parts of 32 tokens: two blocks each.
    assert_eq!(ids[0].len(), 4);
    assert_eq!(ids[0][..2], ids[1][..2]);
    assert!(
        ids[0][2..]
            .iter()
            .all(|id| !ids[1].contains(id) && !ids[2].contains(id))
    );
}

#[test]
fn azure_has_times_and_lengths_only() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-12-31 23:59:59.5000000,4808,10\n2024-01-01 00:00:01.0000000,3180,8\n";
    let (format, rows) = rows(text);
    assert_eq!(format, Format::Azure);
    assert_eq!((rows[0].at, rows[1].at), (Some(0.0), Some(1.5)));
    assert!(rows[1].blind && rows[1].input == 3_180 && rows[1].output == 8);
    let stats = stats(text);
    assert_eq!((stats.reuse, stats.sessions), (None, 2));
    assert!(stats.to_string().contains("ideal reuse   unknown"));
}

#[test]
fn requests_are_known_by_their_bytes() {
    let long = "word ".repeat(100);
    let ask = |more: &str, extra: &str| {
        format!(
            r#"{{"messages":[{{"role":"system","content":"{long}"}},{{"role":"user","content":"hello"}}{more}]{extra}}}"#
        )
    };
    let first = ask("", r#","max_tokens":33,"timestamp":1"#);
    let answered = r#",{"role":"assistant","content":"hi"},{"role":"user","content":"more"}"#;
    let second = ask(answered, r#","target_output_tokens":5,"timestamp":2.5"#);
    let held = format!(r#"{{"custom_id":"1","body":{}}}"#, ask("", ""));
    let (format, rows) = rows(&[first, second, held].join("\n"));
    assert_eq!(format, Format::OpenAi);
    assert_eq!(
        (rows[0].output, rows[1].output, rows[2].output),
        (33, 5, 256)
    );
    assert_eq!(
        rows[0].session, rows[1].session,
        "content tells conversations"
    );
    assert_eq!(rows[1].at, Some(2.5));
    assert!(rows[0].estimated && rows[0].input > 125);
    let common = rows[0]
        .ids()
        .zip(rows[1].ids())
        .take_while(|(a, b)| a == b)
        .count();
    assert!(common as u64 >= rows[0].blocks() && common >= 7, "{common}");
}

#[test]
fn dialogues_are_one_request_for_each_answer() {
    let text = r#"{"task_id":1,"trial":0,"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}"#;
    let (format, rows) = rows(text);
    assert_eq!((format, rows.len()), (Format::Dialogues, 2));
    assert!(rows[0].input < rows[1].input && rows[0].session == rows[1].session);
    let prompts = r#"{"timestamp":1500000,"input":"0123","output":"01234567","session_id":"s"}"#;
    let (format, rows) = self::rows(prompts);
    assert_eq!(format, Format::Prompts);
    assert_eq!(
        (rows[0].at, rows[0].input, rows[0].output),
        (Some(1.5), 1, 2)
    );
}

#[test]
fn what_is_wrong_is_told_with_line_and_field() {
    let cases = [
        (
            "",
            "the format cannot be told from the first line; name it (--format)",
        ),
        (
            "{}",
            "the format cannot be told from the first line; name it (--format)",
        ),
        (
            r#"{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}
{"timestamp":0,"input_length":5,"hash_ids":[1]}"#,
            "line 2: output_length: is missing",
        ),
        (
            r#"{"timestamp":0,"input_length":-5,"output_length":1,"hash_ids":[1]}"#,
            "line 1: input_length: must be a whole number from 0 to 4294967295",
        ),
        (
            r#"{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1,2]}"#,
            "line 1: hash_ids: must have one id for each 512 tokens of input_length begun",
        ),
        (
            r#"{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":["x"]}"#,
            "line 1: hash_ids: must be a list of whole numbers from 0",
        ),
        (
            r#"{"id":"a","block_size":64,"requests":[{"t":0,"in":200,"out":5,"runs":[[1,3]]},{"t":0,"in":1,"out":5,"runs":[[1,3]]}]}"#,
            "line 1: requests[1].in: is less than its blocks hold",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2",
            "line 2: TIMESTAMP: must be YYYY-MM-DD HH:MM:SS.FFFFFFF",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1",
            "line 2: GeneratedTokens: is missing",
        ),
        (
            "{\"maitred_trace\":1,\"block_tokens\":16}\n{\"in\":1,\"out\":\"x\"}",
            "line 2: out: must be a number",
        ),
        (
            "{\"maitred_trace\":2,\"block_tokens\":16}",
            "line 1: maitred_trace: must be 1",
        ),
    ];
    for (text, problem) in cases {
        assert_eq!(wrong(text), problem, "{text}");
    }
    let broken = wrong("{\"maitred_trace\":1,\"block_tokens\":16}\n{\"in\":1,");
    assert!(broken.starts_with("line 2: line: EOF"), "{broken}");
}

#[test]
fn a_plan_survives_our_own_format() {
    for kind in [
        "chat:sessions=20",
        "agents:sessions=8:sub_share=0.3",
        "whale:whale=3:newcomers=9",
    ] {
        let made = named(kind).unwrap().plan(16, 5, 1.0);
        let mut written = Vec::new();
        write_plan(&mut written, &made, Format::Maitred).unwrap();
        let back = plan(&String::from_utf8(written).unwrap());
        assert_eq!(back.requests.len(), made.requests.len(), "{kind}");
        // Sessions may be numbered otherwise: what is sent when, and with which blocks, is the same.
        let sent = |plan: &Plan| -> Vec<_> {
            let first = crate::plan::nominal_order(plan)[0].0;
            let mut sent: Vec<_> = (crate::plan::nominal_order(plan).iter())
                .map(|(time, at)| {
                    let request = &plan.requests[*at as usize];
                    let micros = (time.since(first).as_secs_f64() * 1e6).round() as u64;
                    (
                        micros / 10,
                        request.chain(),
                        request.prompt_tokens,
                        request.output_tokens,
                        request.turn,
                    )
                })
                .collect();
            sent.sort_unstable();
            sent
        };
        assert!(sent(&made) == sent(&back), "{kind}");
    }
}

#[test]
fn other_formats_keep_lengths_and_shared_beginnings() {
    let made = named("shared:sessions=40:openings=3")
        .unwrap()
        .plan(16, 5, 1.0);
    let of = |format| {
        let mut written = Vec::new();
        write_plan(&mut written, &made, format).unwrap();
        stats(&String::from_utf8(written).unwrap())
    };
    let (own, fine, coarse) = (
        of(Format::Maitred),
        of(Format::Bailian),
        of(Format::Mooncake),
    );
    for other in [&fine, &coarse] {
        assert_eq!(
            (other.requests, other.input_tokens),
            (own.requests, own.input_tokens)
        );
    }
    assert_eq!(fine.sessions, own.sessions);
    let share = |stats: &Stats| stats.reuse.as_ref().unwrap().share;
    assert!(
        (share(&fine) - share(&own)).abs() < 0.01,
        "{} {}",
        share(&fine),
        share(&own)
    );
    assert!(
        share(&coarse) < share(&fine) && share(&coarse) > 0.3,
        "{}",
        share(&coarse)
    );
    let mut none = Vec::new();
    let odd = named("chat:sessions=2").unwrap().plan(48, 1, 1.0);
    assert!(write_plan(&mut none, &odd, Format::Mooncake).is_err());
    assert!(write_plan(&mut none, &odd, Format::Azure).is_err());
}

#[test]
fn a_pause_is_cut_where_that_is_asked_for() {
    let mut rows = Vec::new();
    let reading = Reading {
        pause_max: 2.0,
        ..Reading::default()
    };
    read(lines(BLOCKS), None, &reading, &mut |row| {
        rows.push(row.pause);
        Ok(())
    })
    .unwrap();
    assert_eq!(rows, [None, Some(2.0), Some(2.0), None]);
}
