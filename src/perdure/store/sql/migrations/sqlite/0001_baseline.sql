-- Jobs and everything that belongs to them. Times are UNIX seconds, payloads are JSON text.

-- States are compared with OR and instr instead of IN: SQLite puts the list of an IN into a
-- temporary table, for each statement again.

CREATE TABLE job (
  id          TEXT    NOT NULL PRIMARY KEY,
  tenant      TEXT    NOT NULL CHECK (tenant <> ''),
  "user"      TEXT    NOT NULL,
  name        TEXT    NOT NULL,
  version     TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (
                state = 'PENDING' OR state = 'RUNNING' OR state = 'WAITING' OR state = 'PAUSED'
                OR state = 'COMPENSATING' OR state = 'COMPLETED' OR state = 'FAILED'
                OR state = 'COMPENSATED' OR state = 'CANCELLED' OR state = 'NEEDS_ATTENTION'),
  queue       TEXT    NOT NULL,
  priority    INTEGER NOT NULL,
  input       TEXT    NOT NULL,
  plan        TEXT,
  result      TEXT,
  error       TEXT,
  wait        TEXT,
  request     TEXT    CHECK (request IN ('cancel', 'pause')),
  paused_from TEXT,                          -- the state to go back to when it is resumed
  key         TEXT,
  fingerprint TEXT    NOT NULL,
  parent      TEXT,
  parent_seq  INTEGER,
  root        TEXT,                          -- the first job of its tree; NULL: itself
  forked_from TEXT,
  budget_of   TEXT,                          -- the job whose budget it spends; NULL: its own
  created_at  REAL    NOT NULL,
  started_at  REAL,
  ended_at    REAL,
  deadline_at REAL,
  labels      TEXT,                          -- as a JSON object; NULL: none
  epoch       INTEGER NOT NULL DEFAULT 0,    -- of its last lease, once it has ended
  worked      REAL    NOT NULL DEFAULT 0,    -- seconds that workers had it, once it has ended
  reused      INTEGER NOT NULL DEFAULT 0,    -- how often its code got the recorded result of an effect
  failed_undos INTEGER NOT NULL DEFAULT 0,   -- entries of its undo list that have failed
  CHECK ((ended_at IS NOT NULL) = (state = 'COMPLETED' OR state = 'FAILED'
                                   OR state = 'COMPENSATED' OR state = 'CANCELLED'))
) STRICT;

CREATE UNIQUE INDEX job_key ON job (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX job_newest ON job (created_at, id);
CREATE INDEX job_tenant ON job (tenant, created_at, id);
CREATE INDEX job_state ON job (state, created_at, id);
CREATE INDEX job_name ON job (name, created_at, id);
CREATE INDEX job_parent ON job (parent, created_at, id) WHERE parent IS NOT NULL;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_budget ON job (budget_of) WHERE budget_of IS NOT NULL;
CREATE INDEX job_ended ON job (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX job_failed_undos ON job (tenant, failed_undos) WHERE failed_undos > 0;

-- The labels of jobs once more, to find jobs by them, newest first.
CREATE TABLE label (
  job_id     TEXT NOT NULL,
  name       TEXT NOT NULL,
  value      TEXT NOT NULL,
  created_at REAL NOT NULL,                  -- of the job
  PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX label_value ON label (name, value, created_at, job_id);

-- Who asked for a tree of jobs besides the user of its first job: who forked it or started a part of
-- it again, and who made the tokens of those who did.
CREATE TABLE requester (
  job_id TEXT NOT NULL,                      -- the first job of the tree
  person TEXT NOT NULL,
  PRIMARY KEY (job_id, person)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER job_transition BEFORE UPDATE OF state ON job
WHEN instr(' PENDING>PENDING PENDING>RUNNING PENDING>PAUSED PENDING>CANCELLED PENDING>NEEDS_ATTENTION'
    || ' RUNNING>RUNNING RUNNING>WAITING RUNNING>PAUSED RUNNING>COMPENSATING RUNNING>COMPLETED'
    || ' RUNNING>FAILED RUNNING>CANCELLED RUNNING>NEEDS_ATTENTION'
    || ' WAITING>WAITING WAITING>RUNNING WAITING>PAUSED WAITING>COMPENSATING WAITING>CANCELLED'
    || ' WAITING>NEEDS_ATTENTION'
    || ' PAUSED>PAUSED PAUSED>PENDING PAUSED>WAITING PAUSED>COMPENSATING PAUSED>CANCELLED'
    || ' COMPENSATING>COMPENSATING COMPENSATING>COMPENSATED COMPENSATING>FAILED'
    || ' COMPENSATING>CANCELLED COMPENSATING>NEEDS_ATTENTION COMPENSATING>PAUSED'
    || ' NEEDS_ATTENTION>NEEDS_ATTENTION NEEDS_ATTENTION>PENDING NEEDS_ATTENTION>COMPENSATING NEEDS_ATTENTION>CANCELLED'
    || ' NEEDS_ATTENTION>FAILED'
    || ' FAILED>PENDING FAILED>COMPENSATING CANCELLED>PENDING CANCELLED>COMPENSATING'
    || ' COMPLETED>COMPENSATING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') = 0
BEGIN
  SELECT RAISE(ABORT, 'illegal transition of a job');
END;

CREATE TRIGGER job_kept BEFORE DELETE ON job WHEN OLD.ended_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'a job that has not ended cannot be deleted');
END;

-- One row for each job that has not ended: who works on it, and when it may be claimed.
-- Narrow, since it is written more often than any other table.
CREATE TABLE lease (
  job_id   TEXT    NOT NULL PRIMARY KEY,
  tenant   TEXT    NOT NULL,
  queue    TEXT    NOT NULL,
  kind     TEXT    NOT NULL,                 -- which workers may claim it: its name and version
  priority INTEGER NOT NULL,
  tag      INTEGER NOT NULL,                 -- its turn among the tenants of the queue
  ready    INTEGER NOT NULL CHECK (ready IN (0, 1)),   -- 1: may be claimed now
  due_at   REAL,                             -- becomes ready then; NULL: only news wakes it
  wakes    INTEGER NOT NULL CHECK (wakes IN (0, 1)),   -- 1: news makes it ready while nobody owns it
  owner    TEXT,
  epoch    INTEGER NOT NULL,                 -- the number of the claim; only grows
  until    REAL    NOT NULL,                 -- by the clock that counts from the machine's start
  claims   INTEGER NOT NULL,                 -- in a row that ended without progress
  worked   REAL    NOT NULL,                 -- seconds that owners had it, without those since …
  since    REAL    NOT NULL,                 -- … the claim or its last renewal, by the clock of `until`
  news     INTEGER NOT NULL,                 -- a counter of messages, commands and other news
  ends     INTEGER NOT NULL DEFAULT 0,       -- a counter of the ends of its children
  awaits   INTEGER NOT NULL DEFAULT 0,       -- so many more children must end before it is due …
  gathers  REAL NOT NULL DEFAULT 0,          -- … after these seconds, in which further ends come
  progress TEXT,                             -- of its running steps, for people, as JSON
  stalled  INTEGER NOT NULL DEFAULT 0 CHECK (stalled IN (0, 1)),   -- 1: its owner sees no progress
  CHECK (owner IS NULL OR (ready = 0 AND due_at IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_ready ON lease (queue, kind, priority DESC, tag, tenant) WHERE ready = 1;
CREATE INDEX lease_timer ON lease (queue, due_at) WHERE ready = 0 AND due_at IS NOT NULL;
CREATE INDEX lease_owned ON lease (owner, queue, tenant) WHERE owner IS NOT NULL;

CREATE TRIGGER lease_epoch BEFORE UPDATE OF epoch ON lease WHEN NEW.epoch < OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'an epoch only grows');
END;

-- What a job did, in order: the truth from which it goes on.
CREATE TABLE journal (
  job_id        TEXT    NOT NULL,
  seq           INTEGER NOT NULL,
  id            TEXT    NOT NULL,
  kind          TEXT    NOT NULL,
  name          TEXT    NOT NULL,
  state         TEXT    NOT NULL CHECK (
                  state = 'SUCCEEDED' OR state = 'PENDING' OR state = 'RUNNING' OR state = 'FAILED'
                  OR state = 'COMPENSATING' OR state = 'COMPENSATED'
                  OR state = 'COMPENSATION_FAILED' OR state = 'SKIPPED'),
  attempt       INTEGER NOT NULL,
  input         TEXT,
  output        TEXT,
  error         TEXT,
  checkpoint    TEXT,
  checkpoint_no INTEGER NOT NULL,
  checkpoint_size INTEGER NOT NULL DEFAULT 0,  -- of the largest one before this
  wake_at       REAL,
  started_at    REAL,
  ended_at      REAL,
  key           TEXT,  -- by which other jobs of the tenant find its result
  PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_key ON journal (key) WHERE key IS NOT NULL;

-- Parts of large payloads of the journal, compressed; an entry names those that it is made of.
CREATE TABLE payload (
  job_id TEXT NOT NULL,
  digest TEXT NOT NULL,
  data   BLOB NOT NULL,
  PRIMARY KEY (job_id, digest)
) STRICT;

-- The identity of an entry never changes: a write that would put another one there is refused.
CREATE TRIGGER journal_place BEFORE UPDATE OF id ON journal WHEN NEW.id <> OLD.id
BEGIN
  SELECT RAISE(ABORT, 'another entry has this place in the journal');
END;

-- Late writes are ignored: a start that arrives after the result, an older checkpoint.
CREATE TRIGGER journal_stale BEFORE UPDATE ON journal
WHEN NEW.id = OLD.id AND (instr(' SUCCEEDED>PENDING SUCCEEDED>RUNNING SKIPPED>RUNNING COMPENSATED>RUNNING'
    || ' COMPENSATING>RUNNING COMPENSATION_FAILED>RUNNING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (OLD.state = 'SUCCEEDED' AND NEW.state = 'SUCCEEDED' AND NEW.output IS OLD.output)
  OR NEW.checkpoint_no < OLD.checkpoint_no)
  AND NOT EXISTS (SELECT 1 FROM fact WHERE name = 'resealing')
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER journal_transition BEFORE UPDATE OF state ON journal
WHEN instr(' PENDING>PENDING PENDING>RUNNING PENDING>SUCCEEDED PENDING>FAILED PENDING>SKIPPED'
    || ' RUNNING>RUNNING RUNNING>PENDING RUNNING>SUCCEEDED RUNNING>FAILED RUNNING>SKIPPED'
    || ' FAILED>PENDING FAILED>RUNNING FAILED>SKIPPED FAILED>COMPENSATING'
    || ' SUCCEEDED>COMPENSATING SKIPPED>PENDING'
    || ' COMPENSATING>COMPENSATING COMPENSATING>COMPENSATED COMPENSATING>COMPENSATION_FAILED'
    || ' COMPENSATION_FAILED>COMPENSATING COMPENSATION_FAILED>COMPENSATED'
    -- late: see journal_stale
    || ' SUCCEEDED>PENDING SUCCEEDED>RUNNING SUCCEEDED>SUCCEEDED SKIPPED>RUNNING'
    || ' COMPENSATED>RUNNING COMPENSATING>RUNNING COMPENSATION_FAILED>RUNNING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') = 0
BEGIN
  SELECT RAISE(ABORT, 'illegal transition of a journal entry');
END;

CREATE TRIGGER journal_result BEFORE UPDATE ON journal
WHEN (OLD.state = 'SUCCEEDED' OR OLD.state = 'COMPENSATING' OR OLD.state = 'COMPENSATED'
    OR OLD.state = 'COMPENSATION_FAILED')
  AND NEW.state NOT IN ('PENDING', 'RUNNING')
  AND NEW.output IS NOT OLD.output
  AND NOT EXISTS (SELECT 1 FROM fact WHERE name = 'resealing')
BEGIN
  SELECT RAISE(ABORT, 'the result of a journal entry never changes');
END;

-- The log of what happened to a job, for people: append-only.
CREATE TABLE event (
  no     INTEGER NOT NULL PRIMARY KEY CHECK (no >= 1),
  job_id TEXT    NOT NULL,
  type   TEXT    NOT NULL,
  data   TEXT    NOT NULL,
  actor  TEXT    NOT NULL,
  at     REAL    NOT NULL
) STRICT;

CREATE INDEX event_job ON event (job_id, no);

-- A replacement deletes the row before it inserts the new one, and fires no trigger of a deletion.
CREATE TRIGGER event_new BEFORE INSERT ON event WHEN EXISTS (SELECT 1 FROM event WHERE no = NEW.no)
BEGIN
  SELECT RAISE(ABORT, 'the event log is append-only');
END;

CREATE TRIGGER event_kept BEFORE UPDATE ON event
WHEN NOT EXISTS (SELECT 1 FROM fact WHERE name = 'resealing')
BEGIN
  SELECT RAISE(ABORT, 'the event log is append-only');
END;

CREATE TRIGGER event_outlives BEFORE DELETE ON event
WHEN EXISTS (SELECT 1 FROM job WHERE id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'the event log is append-only: it is deleted only with its job');
END;

-- Messages to jobs. Received ones are kept, so that a repeated key is recognised.
CREATE TABLE message (
  no       INTEGER NOT NULL PRIMARY KEY,
  job_id   TEXT    NOT NULL,
  topic    TEXT    NOT NULL,
  payload  TEXT    NOT NULL,
  key      TEXT,
  sent_at  REAL    NOT NULL,
  taken_at REAL
) STRICT;

CREATE INDEX message_job ON message (job_id, no);
CREATE UNIQUE INDEX message_key ON message (job_id, key) WHERE key IS NOT NULL;

-- What jobs emit while they run, in chunks of pieces: each row holds some that follow each other.
CREATE TABLE output (
  job_id   TEXT    NOT NULL,
  topic    TEXT    NOT NULL,
  no       INTEGER NOT NULL,                 -- the position of its last piece
  pieces   INTEGER NOT NULL,
  step     TEXT    NOT NULL,                 -- that has emitted it; empty: the code of the job
  attempt  INTEGER NOT NULL,
  part     INTEGER NOT NULL,                 -- how many checkpoints the step had saved
  size     INTEGER NOT NULL,                 -- bytes of its pieces
  discards INTEGER,                          -- a mark: pieces of the step from this position on are void
  data     TEXT    NOT NULL,                 -- a JSON list of the pieces
  at       REAL    NOT NULL,
  PRIMARY KEY (job_id, topic, no)
) STRICT, WITHOUT ROWID;

-- How much of each topic there is.
CREATE TABLE output_topic (
  job_id  TEXT    NOT NULL,
  topic   TEXT    NOT NULL,
  last    INTEGER NOT NULL,                  -- the last position; only grows
  emitted INTEGER NOT NULL,                  -- how many pieces the code of the job has emitted
  pieces  INTEGER NOT NULL,                  -- how many are kept
  size    INTEGER NOT NULL,                  -- bytes of these
  dropped INTEGER NOT NULL,                  -- pieces up to this position were dropped; 0: none
  PRIMARY KEY (job_id, topic)
) STRICT, WITHOUT ROWID;

CREATE TABLE schedule (
  tenant   TEXT    NOT NULL CHECK (tenant <> ''),
  name     TEXT    NOT NULL,
  cron     TEXT    NOT NULL,
  job      TEXT    NOT NULL,
  timezone TEXT    NOT NULL,
  catch_up TEXT    NOT NULL,
  paused   INTEGER NOT NULL CHECK (paused IN (0, 1)),
  next_at  REAL,
  last_at  REAL,
  PRIMARY KEY (tenant, name)
) STRICT;

CREATE TABLE worker (
  owner TEXT NOT NULL PRIMARY KEY,
  info  TEXT NOT NULL,
  definitions TEXT NOT NULL,                 -- the digest of what it knows
  heartbeat_at REAL NOT NULL                 -- by the clock of the leases
) STRICT;

-- What workers know: stored once, however many run the same code.
CREATE TABLE definitions (
  digest       TEXT NOT NULL PRIMARY KEY,
  data         TEXT NOT NULL,
  published_at REAL NOT NULL
) STRICT;

-- The steps that a worker must know to claim a plan of this kind.
CREATE TABLE plan_kind (
  kind  TEXT NOT NULL PRIMARY KEY,
  steps TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Whose turn it is: the last tag given to each tenant of a queue.
CREATE TABLE turn (
  queue  TEXT    NOT NULL,
  tenant TEXT    NOT NULL,
  tag    INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue (
  name      TEXT    NOT NULL PRIMARY KEY,
  tag       INTEGER NOT NULL,                -- of the job last claimed
  claimed   TEXT,                            -- what counts for its rate: [[when, how many], …]
  paused    INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1))   -- 1: nothing is claimed
) STRICT;

-- Facts about this file: the start of the machine by which its leases count, the fingerprint key, the
-- keys of its payloads, and whether plain ones are legal beside them; `resealing`, only within a transaction that encrypts values with another key:
-- what never changes is then the same value with another ciphertext.
CREATE TABLE fact (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

-- Always empty. It is filled for a moment, once, so that the write-ahead log has its full size from
-- the start: overwriting a part of a file durably takes half the time of appending to it.
CREATE TABLE pad (
  filler BLOB NOT NULL
) STRICT;

-- Effects, approvals, notices and budgets.

-- The ledger: written before the first byte is sent, and again when the outcome is known.
CREATE TABLE effect (
  job_id     TEXT    NOT NULL,
  no         INTEGER NOT NULL,               -- its place: effects are undone in the reverse order
  tenant     TEXT    NOT NULL,
  key        TEXT    NOT NULL,               -- by which the receiver recognises a repeated call
  step       TEXT    NOT NULL,
  part       TEXT    NOT NULL,
  ordinal    INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  kind       TEXT    NOT NULL,
  target     TEXT    NOT NULL,
  state      TEXT    NOT NULL CHECK (state IN (
               'INTENT', 'DONE', 'FAILED', 'IN_DOUBT', 'UNDONE', 'BORROWED')),
  in_doubt   TEXT    NOT NULL,
  key_ttl    REAL    NOT NULL,
  details    TEXT,
  result     TEXT,
  problem    TEXT,
  error      TEXT,
  undo       TEXT,
  proof      TEXT    NOT NULL,
  called_at  REAL    NOT NULL,
  ended_at   REAL,
  business   TEXT,                           -- by which all jobs of the tenant find it
  kept_until REAL,                           -- how long it then outlives its job; NULL: for ever
  last_called_at REAL,                       -- when the key was last used, if that was noted
  PRIMARY KEY (job_id, no)
) STRICT, WITHOUT ROWID;

-- The key is derived from the place of the effect, so places are unique, too.
CREATE UNIQUE INDEX effect_key ON effect (tenant, key);
CREATE INDEX effect_business ON effect (tenant, business, generation) WHERE business IS NOT NULL;
CREATE INDEX effect_kept ON effect (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX effect_open ON effect (tenant, called_at) WHERE state IN ('INTENT', 'IN_DOUBT');
CREATE INDEX effect_doubt ON effect (job_id) WHERE state = 'IN_DOUBT';

-- An attempt that was stopped before its call says so; by then the line may belong to another one.
CREATE TRIGGER effect_not_called BEFORE UPDATE ON effect
WHEN NEW.proof = 'not called' AND (NEW.job_id <> OLD.job_id OR NEW.step <> OLD.step
  OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER effect_owner BEFORE UPDATE ON effect
WHEN NEW.job_id <> OLD.job_id AND NEW.proof <> 'not called'
BEGIN
  SELECT RAISE(ABORT, 'the key of an effect belongs to another job');
END;

CREATE TRIGGER effect_place BEFORE UPDATE ON effect
WHEN NEW.proof <> 'not called'
  AND (NEW.step <> OLD.step OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
BEGIN
  SELECT RAISE(ABORT, 'the key of an effect belongs to another place in its job');
END;

-- The same line again, since the answer to the first write was lost: ignored.
CREATE TRIGGER effect_stale BEFORE UPDATE OF state ON effect
WHEN NEW.job_id = OLD.job_id AND NEW.step = OLD.step AND NEW.part = OLD.part
  AND NEW.ordinal = OLD.ordinal AND (
  instr(' DONE>INTENT FAILED>INTENT IN_DOUBT>INTENT UNDONE>INTENT FAILED>FAILED UNDONE>UNDONE'
    || ' FAILED>UNDONE ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (instr(' INTENT>INTENT IN_DOUBT>IN_DOUBT ', ' ' || OLD.state || '>' || NEW.state || ' ') > 0
    AND NEW.proof = OLD.proof AND NEW.last_called_at IS OLD.last_called_at)
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS OLD.result))
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER effect_transition BEFORE UPDATE OF state ON effect
WHEN NEW.job_id = OLD.job_id AND OLD.state IN ('DONE', 'FAILED', 'UNDONE') AND (
  instr(' DONE>FAILED DONE>IN_DOUBT FAILED>DONE FAILED>IN_DOUBT UNDONE>DONE UNDONE>FAILED'
    || ' UNDONE>IN_DOUBT ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS NOT OLD.result))
BEGIN
  SELECT RAISE(ABORT, 'what is known of an effect never changes');
END;

-- When a job ends, the outcome of its open calls stays unknown.
CREATE TRIGGER job_leaves_no_intent AFTER UPDATE OF state ON job
WHEN NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL
BEGIN
  UPDATE effect SET state = 'IN_DOUBT', ended_at = NEW.ended_at
  WHERE job_id = NEW.id AND state = 'INTENT';
END;

-- Only of the place in the ledger: a repeated call writes its key again, and is a change of its row.
CREATE TRIGGER effect_new BEFORE INSERT ON effect
WHEN EXISTS (SELECT 1 FROM effect WHERE job_id = NEW.job_id AND no = NEW.no)
BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;

CREATE TRIGGER effect_outlives BEFORE DELETE ON effect
WHEN EXISTS (SELECT 1 FROM job WHERE id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only: it is deleted only with its job');
END;

-- Questions to people, each about one action.
CREATE TABLE approval (
  id          TEXT    NOT NULL PRIMARY KEY,
  tenant      TEXT    NOT NULL,
  job_id      TEXT    NOT NULL,
  step        TEXT    NOT NULL,              -- what waits for it
  state       TEXT    NOT NULL CHECK (state IN (
                'PENDING', 'APPROVED', 'REJECTED', 'EXPIRED', 'WITHDRAWN')),
  action_hash TEXT    NOT NULL,
  no          INTEGER NOT NULL,              -- grows with every change
  tick_at     REAL,                          -- when to remind, escalate or expire next
  created_at  REAL    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

-- One question for one action, as long as it is open.
CREATE UNIQUE INDEX approval_asked ON approval (job_id, step, action_hash) WHERE state = 'PENDING';
CREATE INDEX approval_step ON approval (job_id, step, created_at);
CREATE INDEX approval_newest ON approval (state, created_at);
CREATE INDEX approval_tick ON approval (tick_at) WHERE tick_at IS NOT NULL;

CREATE TRIGGER approval_decided BEFORE UPDATE ON approval
WHEN (OLD.state <> 'PENDING' OR NEW.no <= OLD.no)
  AND NOT EXISTS (SELECT 1 FROM fact WHERE name = 'resealing')
BEGIN
  SELECT RAISE(ABORT, 'an approval is decided once');
END;

-- Links of mails, by which one person may decide about one approval, once.
CREATE TABLE link (
  id          TEXT    NOT NULL PRIMARY KEY,
  approval_id TEXT    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

CREATE INDEX link_approval ON link (approval_id);

-- Notices to people, kept until they are delivered: a row for each channel and recipient.
CREATE TABLE notice (
  id          TEXT    NOT NULL PRIMARY KEY,
  job_id      TEXT    NOT NULL,
  approval_id TEXT,
  channel     TEXT    NOT NULL,
  recipient   TEXT    NOT NULL,
  kind        TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (
    state IN ('WAITING', 'SENDING', 'ADDRESSED', 'DELIVERED', 'GIVEN_UP')),
  due_at      REAL    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

CREATE INDEX notice_due ON notice (channel, due_at) WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_recipient ON notice (channel, recipient, due_at)
  WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_job ON notice (job_id);
CREATE INDEX notice_approval ON notice (approval_id) WHERE approval_id IS NOT NULL;

-- What a job and its children may spend, and what is spent.
CREATE TABLE budget (
  root_id TEXT    NOT NULL PRIMARY KEY,
  no      INTEGER NOT NULL,
  data    TEXT    NOT NULL
) STRICT;

-- For people who query by hand: times as texts. Payloads are JSON text, as in the tables: SQLite
-- reads it with json_extract and ->>.
CREATE VIEW perdure_jobs AS
SELECT job.id, name, version, state, job.tenant, "user", job.queue, job.priority, key,
       coalesce(labels, '{}') AS labels, input, plan, result, error, wait, request, parent,
       coalesce(root, id) AS root, forked_from,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, 'unixepoch') AS ended_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', deadline_at, 'unixepoch') AS deadline_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', lease.due_at, 'unixepoch') AS due_at,
       lease.owner AS worker, coalesce(lease.worked, job.worked) AS worked
FROM job LEFT JOIN lease ON lease.job_id = job.id;

CREATE VIEW perdure_steps AS
SELECT job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint, checkpoint_no,
       strftime('%Y-%m-%dT%H:%M:%fZ', wake_at, 'unixepoch') AS wake_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, 'unixepoch') AS ended_at,
       ended_at - started_at AS seconds
FROM journal;

CREATE VIEW perdure_effects AS
SELECT job_id, no, tenant, step, kind, target, state, key, generation, details, result, problem,
       error, proof,
       strftime('%Y-%m-%dT%H:%M:%fZ', called_at, 'unixepoch') AS called_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at, 'unixepoch') AS ended_at
FROM effect;

CREATE VIEW perdure_events AS
SELECT no, job_id, type, data, actor, strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch') AS at FROM event;

CREATE VIEW perdure_approvals AS
SELECT id, tenant, job_id, step, state, strftime('%Y-%m-%dT%H:%M:%fZ', created_at, 'unixepoch') AS created_at, data
FROM approval;

CREATE VIEW perdure_output AS
SELECT job_id, topic, no - pieces + listed.key + 1 AS position, step, attempt,
       data -> listed.fullkey AS value,
       strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch') AS at
FROM output, json_each(data) AS listed
WHERE discards IS NULL;

-- What operators ask of workers, and the answers.
CREATE TABLE worker_command (
  id          TEXT NOT NULL PRIMARY KEY,
  owner       TEXT NOT NULL,                 -- the worker
  action      TEXT NOT NULL,
  data        TEXT NOT NULL,
  asked_by    TEXT NOT NULL,
  asked_at    REAL NOT NULL,
  expires_at  REAL NOT NULL,               -- it is ignored from then on
  answered_at REAL,
  answer      TEXT
) STRICT;

CREATE INDEX worker_command_open ON worker_command (owner) WHERE answer IS NULL;

-- What people say about groups of errors.
CREATE TABLE error_mark (
  tenant      TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'resolved', 'ignored')),
  marked_by   TEXT NOT NULL,
  marked_at   REAL NOT NULL,
  PRIMARY KEY (tenant, fingerprint)
) STRICT;

-- Queries that people keep, for all of their tenant.
CREATE TABLE saved_view (
  tenant   TEXT NOT NULL,
  name     TEXT NOT NULL,
  query    TEXT NOT NULL,
  saved_by TEXT NOT NULL,
  saved_at REAL NOT NULL,
  PRIMARY KEY (tenant, name)
) STRICT;

-- What principals have changed over HTTP: a chain of hashes for each tenant, kept for good.
CREATE TABLE audit (
  tenant TEXT    NOT NULL,                   -- '': the installation
  no     INTEGER NOT NULL CHECK (no >= 1),
  line   TEXT    NOT NULL,                   -- canonical JSON
  hash   TEXT    NOT NULL,                   -- of the line, which has the hash before it
  PRIMARY KEY (tenant, no)
) STRICT;

CREATE TRIGGER audit_new BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE tenant = NEW.tenant AND no = NEW.no)
BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;

CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;

CREATE TRIGGER audit_kept BEFORE DELETE ON audit
BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- Tokens of programs and people: only their hashes.
CREATE TABLE token (
  id           TEXT NOT NULL PRIMARY KEY,
  hash         TEXT NOT NULL UNIQUE,
  tenant       TEXT CHECK (tenant <> ''),     -- NULL: all tenants
  principal    TEXT NOT NULL,                 -- who is let in by it
  created_by   TEXT NOT NULL,                 -- who made it
  makers       TEXT NOT NULL,                 -- JSON: who made it, and the token of its maker, and so on
  created_at   REAL NOT NULL,
  expires_at   REAL,
  revoked_at   REAL,
  last_used_at REAL,
  data         TEXT NOT NULL
) STRICT;

CREATE INDEX token_principal ON token (principal);

-- People who are signed in with a browser: only the hashes of their cookies.
CREATE TABLE session (
  hash       TEXT NOT NULL PRIMARY KEY,
  tenant     TEXT CHECK (tenant <> ''),      -- NULL: all tenants
  person     TEXT NOT NULL,
  token_id   TEXT,                           -- by which they have signed in
  created_at REAL NOT NULL,
  seen_at    REAL NOT NULL,
  expires_at REAL NOT NULL,
  data       TEXT NOT NULL
) STRICT;

CREATE INDEX session_expires ON session (expires_at);

-- Links that sign somebody in once.
CREATE TABLE sign_in_link (
  hash       TEXT NOT NULL PRIMARY KEY,
  expires_at REAL NOT NULL,
  data       TEXT NOT NULL
) STRICT;

-- Answers to requests over HTTP that carry a key, for those who send them again.
CREATE TABLE answer (
  tenant    TEXT NOT NULL,                    -- empty: a principal of all tenants
  principal TEXT NOT NULL,
  key       TEXT NOT NULL,
  digest    TEXT NOT NULL,                    -- of the request
  taker     TEXT NOT NULL,                    -- who serves it; empty: it was given back
  done      TEXT NOT NULL,                    -- what it has changed: a line for each verb
  status    INTEGER,                         -- NULL: it is under way
  body      TEXT,
  needs     TEXT NOT NULL DEFAULT '',         -- the permissions without which nobody gets it again
  at        REAL NOT NULL,
  PRIMARY KEY (tenant, principal, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX answer_at ON answer (at);

-- Traces: written only by programs that trace.

CREATE TABLE trace (
  job_id TEXT NOT NULL PRIMARY KEY,
  parent TEXT NOT NULL,                      -- the span that submitted the job, or its first run
  last   TEXT                                -- the span of its last run
) STRICT, WITHOUT ROWID;

-- Threads of LangGraph: written only by programs that use `PerdureSaver`.

CREATE TABLE langgraph_checkpoint (
  tenant   TEXT NOT NULL,
  thread   TEXT NOT NULL,
  ns       TEXT NOT NULL,                    -- the subgraph; '': the graph itself
  id       TEXT NOT NULL,                    -- grows with time
  parent   TEXT,
  run      TEXT,
  root     TEXT,                             -- the graph's own checkpoint from which a subgraph was called
  versions TEXT NOT NULL,                    -- JSON: of each channel
  deltas   TEXT NOT NULL,                    -- JSON: channels that are rebuilt from writes of ancestors
  metadata BLOB NOT NULL,
  data     BLOB NOT NULL,
  PRIMARY KEY (tenant, thread, ns, id)
) STRICT;

CREATE INDEX langgraph_checkpoint_run ON langgraph_checkpoint (tenant, run) WHERE run IS NOT NULL;

-- The value of a channel, once for each of its versions: as a whole, or as a list of pieces.
CREATE TABLE langgraph_value (
  tenant  TEXT NOT NULL,
  thread  TEXT NOT NULL,
  ns      TEXT NOT NULL,
  channel TEXT NOT NULL,
  version TEXT NOT NULL,
  data    BLOB,
  pieces  BLOB,
  PRIMARY KEY (tenant, thread, ns, channel, version),
  CHECK ((data IS NULL) <> (pieces IS NULL))
) STRICT;

-- Items of long lists, such as messages: each once in its thread, however many versions have it.
CREATE TABLE langgraph_piece (
  tenant TEXT NOT NULL,
  thread TEXT NOT NULL,
  digest TEXT NOT NULL,                      -- of what is in it
  data   BLOB NOT NULL,
  PRIMARY KEY (tenant, thread, digest)
) STRICT;

-- What nodes have written since a checkpoint.
CREATE TABLE langgraph_write (
  tenant     TEXT    NOT NULL,
  thread     TEXT    NOT NULL,
  ns         TEXT    NOT NULL,
  checkpoint TEXT    NOT NULL,
  task       TEXT    NOT NULL,
  idx        INTEGER NOT NULL,               -- below 0: an error, an interrupt or the like
  path       TEXT    NOT NULL,
  channel    TEXT    NOT NULL,
  data       BLOB    NOT NULL,
  PRIMARY KEY (tenant, thread, ns, checkpoint, task, idx)
) STRICT;

-- Checkpoints of workflows of the Agent Framework: written only by `PerdureCheckpointStorage`.
CREATE TABLE workflow_checkpoint (
  tenant   TEXT NOT NULL,
  id       TEXT NOT NULL,
  workflow TEXT NOT NULL,
  at       REAL NOT NULL,                    -- when the framework made it
  data     BLOB NOT NULL,
  PRIMARY KEY (tenant, id)
) STRICT;

CREATE INDEX workflow_checkpoint_at ON workflow_checkpoint (tenant, workflow, at, id);

-- Long-term memory of LangGraph: written only by programs that use `PerdureStore`.
CREATE TABLE langgraph_item (
  tenant     TEXT NOT NULL,
  namespace  TEXT NOT NULL,               -- each label as JSON, with a comma behind it
  key        TEXT NOT NULL,
  data       BLOB NOT NULL,               -- JSON
  vectors    BLOB,                        -- their length, and the embeddings of what it says
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  ttl        REAL,                        -- minutes
  expires_at REAL,
  PRIMARY KEY (tenant, namespace, key)
) STRICT;

CREATE INDEX langgraph_item_expiry ON langgraph_item (tenant, expires_at)
WHERE expires_at IS NOT NULL;
