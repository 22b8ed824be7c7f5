//! The exchanges of `../shared/fixtures/horde`, where they are: what a real server of the AI Horde
//! answers to what real workers send.

use crate::Served;
use crate::horde::{call, job, serve_horde};
use maitred_tests::{Client, Response, request};
use serde_json::{Value, json};
use std::path::Path;

/// An exchange: the worker's request, and what it is answered.
struct Exchange {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
    status: u16,
    answer: Value,
}

fn read(name: &str) -> Option<Exchange> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/horde");
    let text = std::fs::read_to_string(folder.join(name).with_extension("json")).ok()?;
    let all: Value = serde_json::from_str(&text).unwrap();
    let headers = all["request"]["headers"].as_object().unwrap().iter();
    Some(Exchange {
        method: all["request"]["method"].as_str().unwrap().to_owned(),
        path: all["request"]["path"].as_str().unwrap().to_owned(),
        headers: headers
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
        body: all["request"]["body"].clone(),
        status: u16::try_from(all["response"]["status"].as_u64().unwrap()).unwrap(),
        answer: all["response"]["body"].clone(),
    })
}

impl Exchange {
    /// Sends it; `id`: the job's here.
    async fn play(&self, served: &Served, id: Option<&Value>) -> Response {
        let mut body = self.body.clone();
        if let Some(id) = id {
            body["id"] = id.clone();
        }
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let bytes = request(&self.method, &self.path, &headers, body);
        let mut client = Client::connect(served.pull.unwrap()).await;
        let answer = client.exchange(&bytes).await;
        assert_eq!(answer.status(), self.status, "{}", answer.text());
        let kind = answer.head.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("application/json"), "{kind}");
        answer
    }

    /// The recorded answer with the id of the job here.
    fn answer_for(&self, id: &Value) -> Value {
        let theirs = self.body["id"].as_str().unwrap();
        let text = self.answer.to_string();
        serde_json::from_str(&text.replace(theirs, id.as_str().unwrap())).unwrap()
    }
}

/// The names of what is there, and its types, a level deep.
fn shape(value: &Value) -> Vec<(String, &'static str)> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let members = value.as_object().unwrap().iter();
    let mut shape: Vec<_> = members.map(|(name, v)| (name.clone(), kind(v))).collect();
    shape.sort();
    shape
}

async fn waiting(served: &Served, body: &Value) -> Client {
    let mut client = served.client().await;
    let headers = [("content-type", "application/json")];
    let bytes = request("POST", "/v1/completions", &headers, body.to_string());
    client.send(bytes).await;
    maitred_tests::within("the request to wait", async {
        while served.metric("maitred_line_requests").await != 1.0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    client
}

#[tokio::test]
#[allow(clippy::print_stderr)]
async fn the_recorded_exchanges_are_served() {
    let Some(user) = read("find-user") else {
        eprintln!("skipped: no recorded exchanges here");
        return;
    };
    let read = |name: &str| read(name).unwrap();
    let served = serve_horde("wait: 50ms", &["attempts: 5"]).await;
    let addr = served.pull.unwrap();

    let answer = user.play(&served, None).await.json();
    assert_eq!(shape(&answer), shape(&user.answer));
    assert!(answer["username"].as_str().unwrap().contains('#'));

    let invalid = read("pop-invalid");
    assert_eq!(invalid.play(&served, None).await.json(), invalid.answer);

    let empty = read("pop-empty");
    let mut expected = empty.answer.clone();
    expected["skipped"] = json!({});
    assert_eq!(empty.play(&served, None).await.json(), expected);

    // The recorded payload is what this request becomes. A first pop makes the model known.
    let pop = read("pop-job");
    let key = pop.headers.iter().find(|(name, _)| name == "apikey");
    call(addr, "POST", &pop.path, &key.unwrap().1, &pop.body).await;
    let mut payload = pop.answer["payload"].clone();
    let body = json!({
        "model": pop.answer["model"], "prompt": payload["prompt"],
        "max_tokens": payload["max_length"], "temperature": payload["temperature"],
        "top_p": payload["top_p"], "stop": payload["stop_sequence"],
    });
    let mut client = waiting(&served, &body).await;
    let answer = pop.play(&served, None).await.json();
    assert_eq!(shape(&answer), shape(&pop.answer));
    let id = answer["id"].clone();
    let (ours, theirs) = (id.as_str().unwrap(), pop.answer["id"].as_str().unwrap());
    let dashes = |id: &str| id.match_indices('-').map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!((ours.len(), dashes(ours)), (theirs.len(), dashes(theirs)));
    // The server chooses it from the worker's own limit.
    payload["max_context_length"] = pop.body["max_context_length"].clone();
    let mut expected = pop.answer.clone();
    expected["payload"] = payload;
    expected["id"] = id.clone();
    expected["ids"] = json!([id]);
    assert_eq!(answer, expected);

    let ok = read("submit-ok");
    assert_eq!(
        shape(&ok.play(&served, Some(&id)).await.json()),
        shape(&ok.answer)
    );
    let said = client.read_response().await.json();
    assert_eq!(said["choices"][0]["text"], " An oak.");
    let again = read("submit-duplicate");
    let answer = again.play(&served, Some(&id)).await.json();
    assert_eq!(answer, again.answer_for(&id));
    let unknown = read("submit-unknown");
    assert_eq!(unknown.play(&served, None).await.json(), unknown.answer);

    // Given back twice, in both ways, then made by a third.
    let mut client = waiting(&served, &body).await;
    let asks = |name: &str| {
        let mut ask = pop.body.clone();
        ask["name"] = json!(name);
        ask
    };
    let first = job(addr, &asks("one")).await;
    let faulted = read("submit-faulted");
    let answer = faulted.play(&served, Some(&first["id"])).await.json();
    assert_eq!(answer, faulted.answer);
    let second = job(addr, &asks("two")).await;
    let null = read("submit-null");
    assert_eq!(
        null.play(&served, Some(&second["id"])).await.json(),
        null.answer
    );
    let third = job(addr, &asks("three")).await;
    ok.play(&served, Some(&third["id"])).await;
    assert_eq!(client.read_response().await.status(), 200);

    let maintenance = read("pop-maintenance");
    let name = maintenance.body["name"]
        .as_str()
        .unwrap()
        .replace(' ', "%20");
    let key = maintenance
        .headers
        .iter()
        .find(|(name, _)| name == "apikey");
    let path = format!("/api/v2/workers/{name}");
    let on = json!({"maintenance": true});
    let put = call(addr, "PUT", &path, &key.unwrap().1, &on).await;
    assert_eq!(put.status(), 200, "{}", put.text());
    assert_eq!(
        maintenance.play(&served, None).await.json(),
        maintenance.answer
    );
}
