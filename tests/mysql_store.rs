//! Our own state on real MySQL and MariaDB servers: leases, fences, regions, forgetting.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use crate::support::mysql::{Server, shared};
use sete::change::mapping;
use sete::engine::mysql::MySql;
use sete::engine::{Fence, Next, Region, Schema, Store, Turn, Turned, Walk, Walked};
use sete::error::Code;
use sete::plan::{Plan, parse};
use sete::report::Event;
use sete::resolve::{Resolved, resolve};
use sete::secret::DbUrl;
use sete::stage::Stage;
use sete::state::{Origin, Pace, Pass, PlanState, Progress, Reject, Retries, StageState, Status, Taken};

const PLAN: &str = "id = \"p\"\nengine = \"mysql\"\n[change]\nkind = \"type\"\ntable = \"t\"\nfrom = \"v\"\nto = \"w\"\ntype = \"bigint\"\n";
const TTL: Duration = Duration::from_secs(30);

fn plan() -> Plan {
    parse(PLAN).unwrap()
}

/// A plan on a table of 25 rows.
struct World {
    server: &'static Server,
    db: String,
    url: DbUrl,
    engine: MySql,
    r: Resolved,
}

impl World {
    async fn new(server: &'static Server) -> World {
        let (db, url) = server.fresh_db();
        server.sql(&db, "CREATE TABLE t (id INT PRIMARY KEY, v INT)");
        let rows = (1..=25).map(|n| format!("({n}, {n})")).collect::<Vec<_>>().join(", ");
        server.sql(&db, &format!("INSERT INTO t VALUES {rows}"));
        let url = DbUrl::new(url);
        let engine = MySql::new(&url, "sete test").unwrap();
        let plan = plan();
        let r = resolve(&plan, &engine.catalog(&plan, &mapping(&plan.change), None).await.unwrap(), None).unwrap();
        engine.prepare().await.unwrap();
        let state = state(&plan);
        engine.create(&state).await.unwrap();
        engine.create(&state).await.unwrap();
        World { server, db, url, engine, r }
    }

    fn another(&self) -> MySql {
        MySql::new(&self.url, "sete test").unwrap()
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.db, sql)
    }

    async fn lease(&self, engine: &MySql) -> Fence {
        match engine.take_lease("p", "me", TTL).await.unwrap() {
            Taken::Ours { token } => Fence { plan: "p".into(), token },
            Taken::Held(lease) => panic!("held: {lease:?}"),
        }
    }
}

fn state(plan: &Plan) -> PlanState {
    PlanState {
        id: plan.id.clone(),
        text: PLAN.into(),
        fingerprint: "f".into(),
        change: plan.change.clone(),
        table: "t".into(),
        origin: Origin {
            table_id: 7,
            old_type: "int".into(),
            new_type: "bigint".into(),
            old_not_null: false,
            old_default: Some("'é\\'".into()),
            adopted: false,
        },
        stages: Stage::ALL.into_iter().map(StageState::pending).collect(),
        progress: None,
        passes: Vec::new(),
        rejected: 0,
        paused: false,
        lease: None,
    }
}

#[tokio::test]
async fn what_is_saved_is_read_again_until_it_is_forgotten() {
    for server in shared() {
        let w = World::new(server).await;
        let fence = w.lease(&w.engine).await;
        let now = w.engine.now().await.unwrap();
        let stage = StageState { status: Status::Done, started_at: Some(now), ..StageState::pending(Stage::Expand) };
        w.engine.save_stage(&fence, &stage).await.unwrap();
        w.engine.save_stage(&fence, &stage).await.unwrap();
        let progress = Progress { filled: 3, ..Progress::begin(Walk::Key, 25, now) };
        w.engine.save_progress(&fence, &progress).await.unwrap();
        let pace = Pace { workers: 2, throttled_by: Some("pause".into()), ..Pace::default() };
        w.engine.save_pace(&fence, &pace).await.unwrap();
        let pass = Pass { started_at: now, finished_at: now, rows: 25, divergent: 0, repaired: 0, sample: vec!["1".into()] };
        w.engine.add_pass(&fence, &pass).await.unwrap();
        let reject = Reject { key: "x".repeat(5000), value: None, message: "no ⛔".into() };
        w.engine.add_rejects(&fence, &[reject.clone(), reject.clone()]).await.unwrap();
        w.engine.add_event(&fence, "me", &Event::Resumed).await.unwrap();
        w.engine.save_plan_text(&fence, "text 'é\\n'").await.unwrap();
        w.engine.set_paused("p", true).await.unwrap();

        let found = w.engine.load("p").await.unwrap().unwrap();
        let expected = state(&plan());
        assert_eq!((&found.origin, &found.change, found.text.as_str()), (&expected.origin, &expected.change, "text 'é\\n'"));
        assert_eq!(found.stages[0], stage);
        assert_eq!(found.progress, Some(Progress { pace, ..progress }));
        assert_eq!((found.passes, found.rejected, found.paused), (vec![pass], 1, true));
        assert!(found.lease.unwrap().alive);
        assert_eq!(w.engine.rejects("p", 5).await.unwrap(), (1, vec![reject]));
        let events = w.engine.events("p", 5).await.unwrap();
        assert_eq!((events.len(), events[0].who.as_str()), (1, "me"));
        assert!(events[0].at.duration_since(now).as_secs().abs() < 60);
        w.engine.clear_rejects(&fence).await.unwrap();
        assert_eq!(w.engine.rejects("p", 5).await.unwrap().0, 0);

        assert_eq!(w.engine.list().await.unwrap(), ["p"]);
        w.engine.forget("p").await.unwrap();
        assert_eq!(w.engine.load("p").await.unwrap(), None);
        assert_eq!(w.sql("SHOW TABLES"), "t");
    }
}

#[tokio::test]
async fn strays_are_folded_by_writer() {
    for server in shared() {
        let w = World::new(server).await;
        let fence = w.lease(&w.engine).await;
        for wrote in ["v", "v", "w"] {
            w.sql(&format!(
                "INSERT INTO sete_stray_write (plan_id, at, application, address, usr, wrote_only) VALUES ('p', UTC_TIMESTAMP(6), 'web', '10.0.0.1', 'shop', '{wrote}')"
            ));
        }
        w.sql("INSERT INTO sete_write (plan_id) VALUES ('p'), ('p')");
        let found = w.engine.stray_writers("p").await.unwrap();
        assert_eq!(found.iter().map(|s| (s.wrote_only.as_str(), s.count)).collect::<Vec<_>>(), [("w", 1), ("v", 2)]);
        assert_eq!(w.engine.writes_seen("p").await.unwrap(), 2);
        w.engine.clear_strays(&fence).await.unwrap();
        assert_eq!((w.engine.stray_writers("p").await.unwrap().len(), w.engine.writes_seen("p").await.unwrap()), (0, 0));
    }
}

#[tokio::test]
async fn a_lease_is_held_by_one_and_taken_over_when_its_session_has_gone() {
    for server in shared() {
        let w = World::new(server).await;
        let other = w.another();
        let fence = w.lease(&w.engine).await;
        assert!(matches!(other.take_lease("p", "other", TTL).await.unwrap(), Taken::Held(lease) if lease.holder == "me"));
        assert!(w.engine.renew_lease(&fence, TTL).await.unwrap());
        // Its session is ended by the server; whoever asks next has it at once.
        w.sql("SELECT session FROM sete_lease").parse::<u64>().map(|id| w.sql(&format!("KILL {id}"))).unwrap();
        let taken = async {
            loop {
                match other.take_lease("p", "other", TTL).await.unwrap() {
                    Taken::Ours { token } => return token,
                    Taken::Held(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let token = tokio::time::timeout(Duration::from_secs(10), taken).await.unwrap();
        assert_eq!(token, fence.token + 1);
        // The one that was taken over writes nothing more.
        let stage = StageState::pending(Stage::Drop);
        assert_eq!(w.engine.save_stage(&fence, &stage).await.unwrap_err().code(), Code::LeaseLost);
        assert!(!w.engine.renew_lease(&fence, TTL).await.unwrap());
        other.release_lease(&Fence { plan: "p".into(), token }).await.unwrap();
        assert_eq!(w.lease(&w.engine).await.token, token + 1);
        // A lease that has ended is free, whoever still lives.
        w.sql("UPDATE sete_lease SET until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND");
        assert!(matches!(other.take_lease("p", "other", TTL).await.unwrap(), Taken::Ours { .. }));
        assert_eq!(w.engine.take_lease("nothing", "me", TTL).await.unwrap_err().code(), Code::NoSuchPlan);
    }
}

async fn turn(engine: &MySql, r: &Resolved, fence: &Fence, walked: Option<&Walked>) -> Turned {
    let turn = Turn { fence, worker: "w", walked, rows: 10, stripes: 1, ttl: TTL, pace: None };
    engine.turn(r, &turn).await.unwrap()
}

fn region(turned: Turned) -> Region {
    match turned.next {
        Next::Region(region) => *region,
        other => panic!("no region: {other:?}"),
    }
}

fn walked(region: &Region) -> Walked {
    Walked { region: region.clone(), empty: 0, deferred: false, retries: Retries::default() }
}

#[tokio::test]
async fn regions_are_given_out_once_and_taken_over_from_those_who_have_gone() {
    for server in shared() {
        let w = World::new(server).await;
        let fence = w.lease(&w.engine).await;
        w.engine.save_progress(&fence, &Progress::begin(Walk::Key, 25, w.engine.now().await.unwrap())).await.unwrap();
        let (one, two) = (w.another(), w.another());
        let first = region(turn(&one, &w.r, &fence, None).await);
        let second = region(turn(&two, &w.r, &fence, None).await);
        assert_ne!(first.chunk.to, second.chunk.to);
        assert_eq!(second.chunk.from, first.chunk.to);
        let third = region(turn(&two, &w.r, &fence, Some(&walked(&second))).await);
        // The end is reached, but the first one is at its region yet.
        let turned = turn(&two, &w.r, &fence, Some(&walked(&third))).await;
        assert!(matches!(turned, Turned { next: Next::Others, workers: 1, .. }), "{turned:?}");
        drop(one);
        let again = async {
            loop {
                match turn(&two, &w.r, &fence, None).await {
                    Turned { next: Next::Others, .. } => tokio::time::sleep(Duration::from_millis(20)).await,
                    turned => return region(turned),
                }
            }
        };
        let again = tokio::time::timeout(Duration::from_secs(10), again).await.unwrap();
        assert_eq!((again.id, again.token), (first.id, first.token + 1));
        let lost = Turn { fence: &fence, worker: "w", walked: Some(&walked(&first)), rows: 10, stripes: 1, ttl: TTL, pace: None };
        assert_eq!(two.turn(&w.r, &lost).await.unwrap_err().code(), Code::RegionTaken);
        let turned = turn(&two, &w.r, &fence, Some(&walked(&again))).await;
        assert!(matches!(turned.next, Next::End), "{turned:?}");
        assert_eq!(turned.progress.done, 25);
    }
}

#[tokio::test]
async fn two_make_the_tables_at_the_same_moment() {
    for server in shared() {
        let (_, url) = server.fresh_db();
        let engines: Vec<MySql> = (0..4).map(|_| MySql::new(&DbUrl::new(url.clone()), "sete test").unwrap()).collect();
        for made in futures_util::future::join_all(engines.iter().map(|engine| engine.prepare())).await {
            made.unwrap();
        }
        server.sql(url.rsplit('/').next().unwrap(), "UPDATE sete_format SET version = 99");
        assert_eq!(engines[0].load("p").await.unwrap_err().code(), Code::StateTooNew);
    }
}
