-- Jobs and everything that belongs to them. Times are UNIX seconds, payloads are JSON text:
-- not jsonb, which would give back other text than it was given.

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;

CREATE FUNCTION ignore_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END $$;

CREATE TABLE job (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant      text COLLATE "C" NOT NULL CHECK (tenant <> ''),
  "user"      text   NOT NULL,
  name        text   NOT NULL,
  version     text   NOT NULL,
  state       text COLLATE "C" NOT NULL CHECK (state IN (
                'PENDING', 'RUNNING', 'WAITING', 'PAUSED', 'COMPENSATING',
                'COMPLETED', 'FAILED', 'COMPENSATED', 'CANCELLED', 'NEEDS_ATTENTION')),
  queue       text COLLATE "C" NOT NULL,
  priority    bigint NOT NULL,
  input       text   NOT NULL,
  plan        text,
  result      text,
  error       text,
  wait        text,
  request     text   CHECK (request IN ('cancel', 'pause')),
  paused_from text,                          -- the state to go back to when it is resumed
  key         text COLLATE "C",
  fingerprint text   NOT NULL,
  parent      text COLLATE "C",
  parent_seq  bigint,
  root        text COLLATE "C",              -- the first job of its tree; NULL: itself
  forked_from text,
  budget_of   text COLLATE "C",
  created_at  float8 NOT NULL,
  started_at  float8,
  ended_at    float8,
  deadline_at float8,
  labels      text,                          -- as a JSON object; NULL: none
  epoch       bigint NOT NULL DEFAULT 0,     -- of its last lease, once it has ended
  worked      float8 NOT NULL DEFAULT 0,     -- seconds that workers had it, once it has ended
  reused      bigint NOT NULL DEFAULT 0,     -- how often its code got the recorded result of an effect
  failed_undos bigint NOT NULL DEFAULT 0,    -- entries of its undo list that have failed
  CHECK ((ended_at IS NOT NULL) = (state IN ('COMPLETED', 'FAILED', 'COMPENSATED', 'CANCELLED')))
) WITH (fillfactor = 80);

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
  job_id     text COLLATE "C" NOT NULL,
  name       text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  created_at float8 NOT NULL,                -- of the job
  PRIMARY KEY (job_id, name)
);

CREATE INDEX label_value ON label (name, value, created_at, job_id);

-- Who asked for a tree of jobs besides the user of its first job: who forked it or started a part of
-- it again, and who made the tokens of those who did.
CREATE TABLE requester (
  job_id text COLLATE "C" NOT NULL,          -- the first job of the tree
  person text COLLATE "C" NOT NULL,
  PRIMARY KEY (job_id, person)
);

CREATE TRIGGER job_transition BEFORE UPDATE OF state ON job FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state NOT IN (
  'PENDING>PENDING', 'PENDING>RUNNING', 'PENDING>PAUSED', 'PENDING>CANCELLED', 'PENDING>NEEDS_ATTENTION',
  'RUNNING>RUNNING', 'RUNNING>WAITING', 'RUNNING>PAUSED', 'RUNNING>COMPENSATING', 'RUNNING>COMPLETED',
  'RUNNING>FAILED', 'RUNNING>CANCELLED', 'RUNNING>NEEDS_ATTENTION',
  'WAITING>WAITING', 'WAITING>RUNNING', 'WAITING>PAUSED', 'WAITING>COMPENSATING', 'WAITING>CANCELLED',
  'WAITING>NEEDS_ATTENTION',
  'PAUSED>PAUSED', 'PAUSED>PENDING', 'PAUSED>WAITING', 'PAUSED>COMPENSATING', 'PAUSED>CANCELLED',
  'COMPENSATING>COMPENSATING', 'COMPENSATING>COMPENSATED', 'COMPENSATING>FAILED',
  'COMPENSATING>CANCELLED', 'COMPENSATING>NEEDS_ATTENTION', 'COMPENSATING>PAUSED',
  'NEEDS_ATTENTION>NEEDS_ATTENTION', 'NEEDS_ATTENTION>PENDING', 'NEEDS_ATTENTION>COMPENSATING', 'NEEDS_ATTENTION>CANCELLED',
  'NEEDS_ATTENTION>FAILED',
  'FAILED>PENDING', 'FAILED>COMPENSATING', 'CANCELLED>PENDING', 'CANCELLED>COMPENSATING',
  'COMPLETED>COMPENSATING'))
EXECUTE FUNCTION refuse('illegal transition of a job');

CREATE TRIGGER job_kept BEFORE DELETE ON job FOR EACH ROW WHEN (OLD.ended_at IS NULL)
EXECUTE FUNCTION refuse('a job that has not ended cannot be deleted');

-- One row for each job that has not ended: who works on it, and when it may be claimed.
-- Narrow and with room on its pages, and `until` is in no index: a renewal touches nothing else.
CREATE TABLE lease (
  job_id   text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant   text COLLATE "C" NOT NULL,
  queue    text COLLATE "C" NOT NULL,
  kind     text COLLATE "C" NOT NULL,        -- which workers may claim it: its name and version
  priority bigint NOT NULL,
  tag      bigint NOT NULL,                  -- its turn among the tenants of the queue
  ready    bigint NOT NULL CHECK (ready IN (0, 1)),    -- 1: may be claimed now
  due_at   float8,                           -- becomes ready then; NULL: only news wakes it
  wakes    bigint NOT NULL CHECK (wakes IN (0, 1)),    -- 1: news makes it ready while nobody owns it
  owner    text COLLATE "C",
  epoch    bigint NOT NULL,                  -- the number of the claim; only grows
  until    float8 NOT NULL,
  claims   bigint NOT NULL,                  -- in a row that ended without progress
  worked   float8 NOT NULL,                  -- seconds that owners had it, without those since …
  since    float8 NOT NULL,                  -- … the claim or its last renewal
  news     bigint NOT NULL,                  -- a counter of messages, commands and other news
  ends     bigint NOT NULL DEFAULT 0,        -- a counter of the ends of its children
  awaits   bigint NOT NULL DEFAULT 0,        -- so many more children must end before it is due …
  gathers  float8 NOT NULL DEFAULT 0,        -- … after these seconds, in which further ends come
  progress text,                             -- of its running steps, for people, as JSON
  stalled  bigint NOT NULL DEFAULT 0 CHECK (stalled IN (0, 1)),    -- 1: its owner sees no progress
  CHECK (owner IS NULL OR (ready = 0 AND due_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX lease_ready ON lease (queue, kind, priority DESC, tag, tenant) WHERE ready = 1;
CREATE INDEX lease_timer ON lease (queue, due_at) WHERE ready = 0 AND due_at IS NOT NULL;
CREATE INDEX lease_owned ON lease (owner, queue, tenant) WHERE owner IS NOT NULL;

CREATE TRIGGER lease_epoch BEFORE UPDATE OF epoch ON lease FOR EACH ROW
WHEN (NEW.epoch < OLD.epoch)
EXECUTE FUNCTION refuse('an epoch only grows');

-- What a job did, in order: the truth from which it goes on.
CREATE TABLE journal (
  job_id        text COLLATE "C" NOT NULL,
  seq           bigint NOT NULL,
  id            text   NOT NULL,
  kind          text   NOT NULL,
  name          text   NOT NULL,
  state         text COLLATE "C" NOT NULL CHECK (state IN (
                  'PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING',
                  'COMPENSATED', 'COMPENSATION_FAILED', 'SKIPPED')),
  attempt       bigint NOT NULL,
  input         text,
  output        text,
  error         text,
  checkpoint    text,
  checkpoint_no bigint NOT NULL,
  checkpoint_size bigint NOT NULL DEFAULT 0,  -- of the largest one before this
  wake_at       float8,
  started_at    float8,
  ended_at      float8,
  key           text COLLATE "C",           -- by which other jobs of the tenant find its result
  PRIMARY KEY (job_id, seq)
) WITH (fillfactor = 90);

CREATE INDEX journal_key ON journal (key) WHERE key IS NOT NULL;

-- Parts of large payloads of the journal, compressed; an entry names those that it is made of.
CREATE TABLE payload (
  job_id text COLLATE "C" NOT NULL,
  digest text COLLATE "C" NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (job_id, digest)
);
ALTER TABLE payload ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE FUNCTION refuse_place() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'entry % of job % is %: % cannot take its place', OLD.seq, OLD.job_id, OLD.id, NEW.id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_place';
END $$;

-- The identity of an entry never changes: a write that would put another one there is refused.
-- Triggers fire in the order of their names.
CREATE TRIGGER journal_0_place BEFORE UPDATE OF id ON journal FOR EACH ROW
WHEN (NEW.id <> OLD.id)
EXECUTE FUNCTION refuse_place();

-- Late writes are ignored: a start that arrives after the result, an older checkpoint.
CREATE TRIGGER journal_1_stale BEFORE UPDATE ON journal FOR EACH ROW
WHEN ((OLD.state || '>' || NEW.state IN (
    'SUCCEEDED>PENDING', 'SUCCEEDED>RUNNING', 'SKIPPED>RUNNING', 'COMPENSATED>RUNNING',
    'COMPENSATING>RUNNING', 'COMPENSATION_FAILED>RUNNING')
  OR (OLD.state = 'SUCCEEDED' AND NEW.state = 'SUCCEEDED' AND NEW.output IS NOT DISTINCT FROM OLD.output)
  OR NEW.checkpoint_no < OLD.checkpoint_no)
  AND current_setting('perdure.resealing', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION ignore_update();

CREATE TRIGGER journal_2_transition BEFORE UPDATE OF state ON journal FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state NOT IN (
  'PENDING>PENDING', 'PENDING>RUNNING', 'PENDING>SUCCEEDED', 'PENDING>FAILED', 'PENDING>SKIPPED',
  'RUNNING>RUNNING', 'RUNNING>PENDING', 'RUNNING>SUCCEEDED', 'RUNNING>FAILED', 'RUNNING>SKIPPED',
  'FAILED>PENDING', 'FAILED>RUNNING', 'FAILED>SKIPPED', 'FAILED>COMPENSATING',
  'SUCCEEDED>COMPENSATING', 'SKIPPED>PENDING',
  'COMPENSATING>COMPENSATING', 'COMPENSATING>COMPENSATED', 'COMPENSATING>COMPENSATION_FAILED',
  'COMPENSATION_FAILED>COMPENSATING', 'COMPENSATION_FAILED>COMPENSATED'))
EXECUTE FUNCTION refuse('illegal transition of a journal entry');

CREATE TRIGGER journal_3_result BEFORE UPDATE ON journal FOR EACH ROW
WHEN (OLD.state IN ('SUCCEEDED', 'COMPENSATING', 'COMPENSATED', 'COMPENSATION_FAILED')
  AND NEW.output IS DISTINCT FROM OLD.output
  AND current_setting('perdure.resealing', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION refuse('the result of a journal entry never changes');

-- The log of what happened to a job, for people: append-only.
CREATE TABLE event (
  no     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id text COLLATE "C" NOT NULL,
  type   text   NOT NULL,
  data   text   NOT NULL,
  actor  text   NOT NULL,
  at     float8 NOT NULL
);

CREATE INDEX event_job ON event (job_id, no);

CREATE FUNCTION event_goes_with_its_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lives boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.job WHERE id = $1)', TG_TABLE_SCHEMA)
    INTO lives USING OLD.job_id;
  IF lives THEN
    RAISE EXCEPTION 'the event log is append-only: it is deleted only with its job'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;

CREATE TRIGGER event_kept BEFORE UPDATE ON event FOR EACH ROW
WHEN (current_setting('perdure.resealing', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION refuse('the event log is append-only');

CREATE TRIGGER event_outlives BEFORE DELETE ON event FOR EACH ROW
EXECUTE FUNCTION event_goes_with_its_job();

CREATE TRIGGER event_truncate BEFORE TRUNCATE ON event FOR EACH STATEMENT
EXECUTE FUNCTION refuse('the event log is append-only');

-- Messages to jobs. Received ones are kept, so that a repeated key is recognised.
CREATE TABLE message (
  no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id   text COLLATE "C" NOT NULL,
  topic    text   NOT NULL,
  payload  text   NOT NULL,
  key      text COLLATE "C",
  sent_at  float8 NOT NULL,
  taken_at float8
);

CREATE INDEX message_job ON message (job_id, no);
CREATE UNIQUE INDEX message_key ON message (job_id, key) WHERE key IS NOT NULL;

-- What jobs emit while they run, in chunks of pieces: each row holds some that follow each other.
CREATE TABLE output (
  job_id   text COLLATE "C" NOT NULL,
  topic    text COLLATE "C" NOT NULL,
  no       bigint NOT NULL,                  -- the position of its last piece
  pieces   bigint NOT NULL,
  step     text   NOT NULL,                  -- that has emitted it; empty: the code of the job
  attempt  bigint NOT NULL,
  part     bigint NOT NULL,                  -- how many checkpoints the step had saved
  size     bigint NOT NULL,                  -- bytes of its pieces
  discards bigint,                           -- a mark: pieces of the step from this position on are void
  data     text   NOT NULL,                  -- a JSON list of the pieces
  at       float8 NOT NULL,
  PRIMARY KEY (job_id, topic, no)
);

-- How much of each topic there is.
CREATE TABLE output_topic (
  job_id  text COLLATE "C" NOT NULL,
  topic   text COLLATE "C" NOT NULL,
  last    bigint NOT NULL,                   -- the last position; only grows
  emitted bigint NOT NULL,                   -- how many pieces the code of the job has emitted
  pieces  bigint NOT NULL,                   -- how many are kept
  size    bigint NOT NULL,                   -- bytes of these
  dropped bigint NOT NULL,                   -- pieces up to this position were dropped; 0: none
  PRIMARY KEY (job_id, topic)
) WITH (fillfactor = 50);

CREATE TABLE schedule (
  tenant   text COLLATE "C" NOT NULL CHECK (tenant <> ''),
  name     text COLLATE "C" NOT NULL,
  cron     text   NOT NULL,
  job      text   NOT NULL,
  timezone text   NOT NULL,
  catch_up text   NOT NULL,
  paused   bigint NOT NULL CHECK (paused IN (0, 1)),
  next_at  float8,
  last_at  float8,
  PRIMARY KEY (tenant, name)
);

CREATE TABLE worker (
  owner text COLLATE "C" NOT NULL PRIMARY KEY,
  info  text   NOT NULL,
  definitions text COLLATE "C" NOT NULL,     -- the digest of what it knows
  heartbeat_at float8 NOT NULL
) WITH (fillfactor = 50);

-- What workers know: stored once, however many run the same code.
CREATE TABLE definitions (
  digest       text COLLATE "C" NOT NULL PRIMARY KEY,
  data         text NOT NULL,
  published_at float8 NOT NULL
);

-- The steps that a worker must know to claim a plan of this kind.
CREATE TABLE plan_kind (
  kind  text COLLATE "C" NOT NULL PRIMARY KEY,
  steps text NOT NULL
);

-- Whose turn it is: the last tag given to each tenant of a queue.
CREATE TABLE turn (
  queue  text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  tag    bigint NOT NULL,
  PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 50);

-- Facts about this store: the fingerprint key, the keys of its payloads, and whether plain ones are
-- legal beside them. Within a transaction with
-- the setting `perdure.resealing`, values are encrypted with another key: what never changes is then
-- the same value with another ciphertext.
CREATE TABLE fact (
  name  text COLLATE "C" NOT NULL PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE queue (
  name      text COLLATE "C" NOT NULL PRIMARY KEY,
  tag       bigint NOT NULL,                 -- of the job last claimed
  claimed   text,                            -- what counts for its rate: [[when, how many], …]
  paused    bigint NOT NULL DEFAULT 0 CHECK (paused IN (0, 1))   -- 1: nothing is claimed
) WITH (fillfactor = 50);

-- The number of the last transaction of each writer. When the answer to a commit is lost, this tells
-- whether it happened: nobody has to guess.
CREATE TABLE last_commit (
  writer text COLLATE "C" NOT NULL PRIMARY KEY,
  no     bigint NOT NULL,
  at     float8 NOT NULL,
  closed bigint NOT NULL DEFAULT 0           -- what has not happened up to this number never will
) WITH (fillfactor = 20);

CREATE TRIGGER last_commit_closed BEFORE UPDATE OF no ON last_commit FOR EACH ROW
WHEN (NEW.no <= OLD.closed OR NEW.no <= OLD.no)
EXECUTE FUNCTION refuse('this transaction came too late: it was closed, and made again');

-- Effects, approvals, notices and budgets.

-- The ledger: written before the first byte is sent, and again when the outcome is known.
CREATE TABLE effect (
  job_id     text COLLATE "C" NOT NULL,
  no         bigint NOT NULL,                -- its place: effects are undone in the reverse order
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,      -- by which the receiver recognises a repeated call
  step       text COLLATE "C" NOT NULL,
  part       text COLLATE "C" NOT NULL,
  ordinal    bigint NOT NULL,
  generation bigint NOT NULL,
  kind       text   NOT NULL,
  target     text   NOT NULL,
  state      text COLLATE "C" NOT NULL CHECK (state IN (
               'INTENT', 'DONE', 'FAILED', 'IN_DOUBT', 'UNDONE', 'BORROWED')),
  in_doubt   text   NOT NULL,
  key_ttl    float8 NOT NULL,
  details    text,
  result     text,
  problem    text,
  error      text,
  undo       text,
  proof      text   NOT NULL,
  called_at  float8 NOT NULL,
  ended_at   float8,
  business   text COLLATE "C",               -- by which all jobs of the tenant find it
  kept_until float8,                         -- how long it then outlives its job; NULL: for ever
  last_called_at float8,                     -- when the key was last used, if that was noted
  PRIMARY KEY (job_id, no)
) WITH (fillfactor = 90);

-- The key is derived from the place of the effect, so places are unique, too.
CREATE UNIQUE INDEX effect_key ON effect (tenant, key);
CREATE INDEX effect_business ON effect (tenant, business, generation) WHERE business IS NOT NULL;
CREATE INDEX effect_kept ON effect (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX effect_open ON effect (tenant, called_at) WHERE state IN ('INTENT', 'IN_DOUBT');
CREATE INDEX effect_doubt ON effect (job_id) WHERE state = 'IN_DOUBT';

-- Triggers fire in the order of their names.
-- An attempt that was stopped before its call says so; by then the line may belong to another one.
CREATE TRIGGER effect_0_not_called BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.proof = 'not called' AND (NEW.job_id <> OLD.job_id OR NEW.step <> OLD.step
  OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal))
EXECUTE FUNCTION ignore_update();

CREATE TRIGGER effect_1_owner BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.job_id <> OLD.job_id)
EXECUTE FUNCTION refuse('the key of an effect belongs to another job');

CREATE TRIGGER effect_1_place BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.step <> OLD.step OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
EXECUTE FUNCTION refuse('the key of an effect belongs to another place in its job');

-- The same line again, since the answer to the first write was lost: ignored.
CREATE TRIGGER effect_2_stale BEFORE UPDATE OF state ON effect FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state IN (
    'DONE>INTENT', 'FAILED>INTENT', 'IN_DOUBT>INTENT', 'UNDONE>INTENT', 'FAILED>FAILED',
    'UNDONE>UNDONE', 'FAILED>UNDONE')
  OR (OLD.state || '>' || NEW.state IN ('INTENT>INTENT', 'IN_DOUBT>IN_DOUBT')
    AND NEW.proof = OLD.proof AND NEW.last_called_at IS NOT DISTINCT FROM OLD.last_called_at)
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS NOT DISTINCT FROM OLD.result))
EXECUTE FUNCTION ignore_update();

CREATE TRIGGER effect_3_transition BEFORE UPDATE OF state ON effect FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state IN (
  'DONE>FAILED', 'DONE>IN_DOUBT', 'FAILED>DONE', 'FAILED>IN_DOUBT', 'UNDONE>DONE',
  'UNDONE>FAILED', 'UNDONE>IN_DOUBT')
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS DISTINCT FROM OLD.result))
EXECUTE FUNCTION refuse('what is known of an effect never changes');

CREATE FUNCTION doubt_intents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('UPDATE %I.effect SET state = $1, ended_at = $2 WHERE job_id = $3 AND state = $4',
                 TG_TABLE_SCHEMA)
    USING 'IN_DOUBT', NEW.ended_at, NEW.id, 'INTENT';
  RETURN NULL;
END $$;

-- When a job ends, the outcome of its open calls stays unknown.
CREATE TRIGGER job_leaves_no_intent AFTER UPDATE OF state ON job FOR EACH ROW
WHEN (NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL)
EXECUTE FUNCTION doubt_intents();

CREATE FUNCTION effect_goes_with_its_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lives boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.job WHERE id = $1)', TG_TABLE_SCHEMA)
    INTO lives USING OLD.job_id;
  IF lives THEN
    RAISE EXCEPTION 'the ledger is append-only: it is deleted only with its job'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;

CREATE TRIGGER effect_outlives BEFORE DELETE ON effect FOR EACH ROW
EXECUTE FUNCTION effect_goes_with_its_job();

CREATE TRIGGER effect_truncate BEFORE TRUNCATE ON effect FOR EACH STATEMENT
EXECUTE FUNCTION refuse('the ledger is append-only');

-- Questions to people, each about one action.
CREATE TABLE approval (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant      text COLLATE "C" NOT NULL,
  job_id      text COLLATE "C" NOT NULL,
  step        text COLLATE "C" NOT NULL,     -- what waits for it
  state       text COLLATE "C" NOT NULL CHECK (state IN (
                'PENDING', 'APPROVED', 'REJECTED', 'EXPIRED', 'WITHDRAWN')),
  action_hash text COLLATE "C" NOT NULL,
  no          bigint NOT NULL,               -- grows with every change
  tick_at     float8,                        -- when to remind, escalate or expire next
  created_at  float8 NOT NULL,
  data        text   NOT NULL
) WITH (fillfactor = 50);

-- One question for one action, as long as it is open.
CREATE UNIQUE INDEX approval_asked ON approval (job_id, step, action_hash) WHERE state = 'PENDING';
CREATE INDEX approval_step ON approval (job_id, step, created_at);
CREATE INDEX approval_newest ON approval (state, created_at);
CREATE INDEX approval_tick ON approval (tick_at) WHERE tick_at IS NOT NULL;

CREATE TRIGGER approval_decided BEFORE UPDATE ON approval FOR EACH ROW
WHEN ((OLD.state <> 'PENDING' OR NEW.no <= OLD.no)
  AND current_setting('perdure.resealing', true) IS DISTINCT FROM 'on')
EXECUTE FUNCTION refuse('an approval is decided once');

-- Links of mails, by which one person may decide about one approval, once.
CREATE TABLE link (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  approval_id text COLLATE "C" NOT NULL,
  data        text   NOT NULL
);

CREATE INDEX link_approval ON link (approval_id);

-- Notices to people, kept until they are delivered: a row for each channel and recipient.
CREATE TABLE notice (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  job_id      text COLLATE "C" NOT NULL,
  approval_id text COLLATE "C",
  channel     text COLLATE "C" NOT NULL,
  recipient   text COLLATE "C" NOT NULL,
  kind        text   NOT NULL,
  state       text COLLATE "C" NOT NULL CHECK (
    state IN ('WAITING', 'SENDING', 'ADDRESSED', 'DELIVERED', 'GIVEN_UP')),
  due_at      float8 NOT NULL,
  data        text   NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX notice_due ON notice (channel, due_at) WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_recipient ON notice (channel, recipient, due_at)
  WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_job ON notice (job_id);
CREATE INDEX notice_approval ON notice (approval_id) WHERE approval_id IS NOT NULL;

-- What a job and its children may spend, and what is spent.
CREATE TABLE budget (
  root_id text COLLATE "C" NOT NULL PRIMARY KEY,
  no      bigint NOT NULL,
  data    text   NOT NULL
) WITH (fillfactor = 50);

-- For people who query by hand: payloads as jsonb, times as timestamptz. What jsonb cannot hold, such
-- as a text with a NUL, is there as a JSON string of its JSON text, so that no query fails on it.
CREATE FUNCTION as_jsonb(payload text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN payload::jsonb;
EXCEPTION WHEN data_exception OR invalid_text_representation OR untranslatable_character THEN
  RETURN to_jsonb(payload);
END $$;

CREATE VIEW perdure_jobs AS
SELECT job.id, name, version, state, job.tenant, "user", job.queue, job.priority, key,
       coalesce(as_jsonb(labels), '{}') AS labels, as_jsonb(input) AS input, as_jsonb(plan) AS plan,
       as_jsonb(result) AS result, as_jsonb(error) AS error, as_jsonb(wait) AS wait, request, parent,
       coalesce(root, id) AS root, forked_from, to_timestamp(created_at) AS created_at,
       to_timestamp(started_at) AS started_at, to_timestamp(ended_at) AS ended_at,
       to_timestamp(deadline_at) AS deadline_at, to_timestamp(lease.due_at) AS due_at,
       lease.owner AS worker, coalesce(lease.worked, job.worked) AS worked
FROM job LEFT JOIN lease ON lease.job_id = job.id;

CREATE VIEW perdure_steps AS
SELECT job_id, seq, id, kind, name, state, attempt, as_jsonb(input) AS input,
       as_jsonb(output) AS output, as_jsonb(error) AS error, as_jsonb(checkpoint) AS checkpoint,
       checkpoint_no, to_timestamp(wake_at) AS wake_at, to_timestamp(started_at) AS started_at,
       to_timestamp(ended_at) AS ended_at, ended_at - started_at AS seconds
FROM journal;

CREATE VIEW perdure_effects AS
SELECT job_id, no, tenant, step, kind, target, state, key, generation, as_jsonb(details) AS details,
       as_jsonb(result) AS result, problem, as_jsonb(error) AS error, proof,
       to_timestamp(called_at) AS called_at, to_timestamp(ended_at) AS ended_at
FROM effect;

CREATE VIEW perdure_events AS
SELECT no, job_id, type, as_jsonb(data) AS data, actor, to_timestamp(at) AS at FROM event;

CREATE VIEW perdure_approvals AS
SELECT id, tenant, job_id, step, state, to_timestamp(created_at) AS created_at,
       as_jsonb(data) AS data
FROM approval;

CREATE VIEW perdure_output AS
SELECT job_id, topic, no - pieces + place AS position, step, attempt, piece AS value,
       to_timestamp(at) AS at
FROM output, jsonb_array_elements(
  CASE jsonb_typeof(as_jsonb(data)) WHEN 'array' THEN as_jsonb(data) ELSE jsonb_build_array(data) END
) WITH ORDINALITY AS listed (piece, place)
WHERE discards IS NULL;

CREATE TRIGGER perdure_jobs_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_jobs
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');
CREATE TRIGGER perdure_steps_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_steps
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');
CREATE TRIGGER perdure_effects_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_effects
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');
CREATE TRIGGER perdure_events_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_events
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');
CREATE TRIGGER perdure_approvals_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_approvals
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');
CREATE TRIGGER perdure_output_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON perdure_output
FOR EACH ROW EXECUTE FUNCTION refuse('the views are for reading: change jobs through perdure');

-- What operators ask of workers, and the answers.
CREATE TABLE worker_command (
  id          TEXT NOT NULL PRIMARY KEY,
  owner       TEXT NOT NULL,                 -- the worker
  action      TEXT NOT NULL,
  data        TEXT NOT NULL,
  asked_by    TEXT NOT NULL,
  asked_at    float8 NOT NULL,
  expires_at  float8 NOT NULL,               -- it is ignored from then on
  answered_at float8,
  answer      TEXT
);

CREATE INDEX worker_command_open ON worker_command (owner) WHERE answer IS NULL;

-- What people say about groups of errors.
CREATE TABLE error_mark (
  tenant      TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'resolved', 'ignored')),
  marked_by   TEXT NOT NULL,
  marked_at   float8 NOT NULL,
  PRIMARY KEY (tenant, fingerprint)
);

-- Queries that people keep, for all of their tenant.
CREATE TABLE saved_view (
  tenant   TEXT NOT NULL,
  name     TEXT NOT NULL,
  query    TEXT NOT NULL,
  saved_by TEXT NOT NULL,
  saved_at float8 NOT NULL,
  PRIMARY KEY (tenant, name)
);

-- What principals have changed over HTTP: a chain of hashes for each tenant, kept for good.
CREATE TABLE audit (
  tenant text COLLATE "C" NOT NULL,                   -- '': the installation
  no     bigint NOT NULL CHECK (no >= 1),
  line   text COLLATE "C" NOT NULL,                   -- canonical JSON
  hash   text COLLATE "C" NOT NULL,                   -- of the line, which has the hash before it
  PRIMARY KEY (tenant, no)
);

CREATE TRIGGER audit_unchanged BEFORE UPDATE OR DELETE ON audit FOR EACH ROW
EXECUTE FUNCTION refuse('the audit log is append-only');
CREATE TRIGGER audit_kept BEFORE TRUNCATE ON audit FOR EACH STATEMENT
EXECUTE FUNCTION refuse('the audit log is append-only');

-- Tokens of programs and people: only their hashes.
CREATE TABLE token (
  id           text COLLATE "C" NOT NULL PRIMARY KEY,
  hash         text COLLATE "C" NOT NULL UNIQUE,
  tenant       text COLLATE "C" CHECK (tenant <> ''),    -- NULL: all tenants
  principal    text COLLATE "C" NOT NULL,     -- who is let in by it
  created_by   text COLLATE "C" NOT NULL,     -- who made it
  makers       text COLLATE "C" NOT NULL,     -- JSON: who made it, and the token of its maker, and so on
  created_at   float8 NOT NULL,
  expires_at   float8,
  revoked_at   float8,
  last_used_at float8,
  data         text COLLATE "C" NOT NULL
);

CREATE INDEX token_principal ON token (principal);

-- People who are signed in with a browser: only the hashes of their cookies.
CREATE TABLE session (
  hash       text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant     text COLLATE "C" CHECK (tenant <> ''),      -- NULL: all tenants
  person     text COLLATE "C" NOT NULL,
  token_id   text COLLATE "C",                           -- by which they have signed in
  created_at float8 NOT NULL,
  seen_at    float8 NOT NULL,
  expires_at float8 NOT NULL,
  data       text COLLATE "C" NOT NULL
);

CREATE INDEX session_expires ON session (expires_at);

-- Links that sign somebody in once.
CREATE TABLE sign_in_link (
  hash       text COLLATE "C" NOT NULL PRIMARY KEY,
  expires_at float8 NOT NULL,
  data       text COLLATE "C" NOT NULL
);

-- Answers to requests over HTTP that carry a key, for those who send them again.
CREATE TABLE answer (
  tenant    text COLLATE "C" NOT NULL,                    -- empty: a principal of all tenants
  principal text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  digest    text COLLATE "C" NOT NULL,                    -- of the request
  taker     text COLLATE "C" NOT NULL,        -- who serves it; empty: it was given back
  done      text COLLATE "C" NOT NULL,        -- what it has changed: a line for each verb
  status    bigint,                         -- NULL: it is under way
  body      text COLLATE "C",
  needs     text COLLATE "C" NOT NULL DEFAULT '',   -- the permissions without which nobody gets it again
  at        float8 NOT NULL,
  PRIMARY KEY (tenant, principal, key)
);

CREATE INDEX answer_at ON answer (at);

-- Traces: written only by programs that trace.

CREATE TABLE trace (
  job_id text COLLATE "C" NOT NULL PRIMARY KEY,
  parent text COLLATE "C" NOT NULL,                      -- the span that submitted the job, or its first run
  last   text COLLATE "C"                                -- the span of its last run
);

-- Threads of LangGraph: written only by programs that use `PerdureSaver`.

CREATE TABLE langgraph_checkpoint (
  tenant   text COLLATE "C" NOT NULL,
  thread   text COLLATE "C" NOT NULL,
  ns       text COLLATE "C" NOT NULL,                    -- the subgraph; '': the graph itself
  id       text COLLATE "C" NOT NULL,                    -- grows with time
  parent   text COLLATE "C",
  run      text COLLATE "C",
  root     text COLLATE "C",                             -- the graph's own checkpoint from which a subgraph was called
  versions text COLLATE "C" NOT NULL,                    -- JSON: of each channel
  deltas   text COLLATE "C" NOT NULL,                    -- JSON: channels that are rebuilt from writes of ancestors
  metadata bytea NOT NULL,
  data     bytea NOT NULL,
  PRIMARY KEY (tenant, thread, ns, id)
);

CREATE INDEX langgraph_checkpoint_run ON langgraph_checkpoint (tenant, run) WHERE run IS NOT NULL;

-- The value of a channel, once for each of its versions: as a whole, or as a list of pieces.
CREATE TABLE langgraph_value (
  tenant  text COLLATE "C" NOT NULL,
  thread  text COLLATE "C" NOT NULL,
  ns      text COLLATE "C" NOT NULL,
  channel text COLLATE "C" NOT NULL,
  version text COLLATE "C" NOT NULL,
  data    bytea,
  pieces  bytea,
  PRIMARY KEY (tenant, thread, ns, channel, version),
  CHECK ((data IS NULL) <> (pieces IS NULL))
);

-- Items of long lists, such as messages: each once in its thread, however many versions have it.
CREATE TABLE langgraph_piece (
  tenant text COLLATE "C" NOT NULL,
  thread text COLLATE "C" NOT NULL,
  digest text COLLATE "C" NOT NULL,                      -- of what is in it
  data   bytea NOT NULL,
  PRIMARY KEY (tenant, thread, digest)
);

-- Whether pieces are there, each under one of some names. Nobody deletes any from then on. What was
-- deleted while it waited for the lock is not there: each of its statements sees what there is then.
CREATE FUNCTION has_graph_pieces(lock text, of_tenant text, of_thread text, wanted json)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended(lock, 0));
  RETURN NOT EXISTS (
    SELECT FROM json_array_elements(wanted) AS piece (names)
    WHERE NOT EXISTS (
      SELECT FROM langgraph_piece
      WHERE tenant = of_tenant AND thread = of_thread
        AND digest IN (SELECT json_array_elements_text(names))));
END $$;

-- What nodes have written since a checkpoint.
CREATE TABLE langgraph_write (
  tenant     text COLLATE "C" NOT NULL,
  thread     text COLLATE "C" NOT NULL,
  ns         text COLLATE "C" NOT NULL,
  checkpoint text COLLATE "C" NOT NULL,
  task       text COLLATE "C" NOT NULL,
  idx        bigint NOT NULL,               -- below 0: an error, an interrupt or the like
  path       text COLLATE "C" NOT NULL,
  channel    text COLLATE "C" NOT NULL,
  data       bytea NOT NULL,
  PRIMARY KEY (tenant, thread, ns, checkpoint, task, idx)
);

-- Checkpoints of workflows of the Agent Framework: written only by `PerdureCheckpointStorage`.
CREATE TABLE workflow_checkpoint (
  tenant   text COLLATE "C" NOT NULL,
  id       text COLLATE "C" NOT NULL,
  workflow text COLLATE "C" NOT NULL,
  at       float8 NOT NULL,                 -- when the framework made it
  data     bytea NOT NULL,
  PRIMARY KEY (tenant, id)
);

CREATE INDEX workflow_checkpoint_at ON workflow_checkpoint (tenant, workflow, at, id);

-- Long-term memory of LangGraph: written only by programs that use `PerdureStore`.
CREATE TABLE langgraph_item (
  tenant     text COLLATE "C" NOT NULL,
  namespace  text COLLATE "C" NOT NULL,               -- each label as JSON, with a comma behind it
  key        text COLLATE "C" NOT NULL,
  data       bytea NOT NULL,               -- JSON
  vectors    bytea,                        -- their length, and the embeddings of what it says
  created_at float8 NOT NULL,
  updated_at float8 NOT NULL,
  ttl        float8,                        -- minutes
  expires_at float8,
  PRIMARY KEY (tenant, namespace, key)
);

CREATE INDEX langgraph_item_expiry ON langgraph_item (tenant, expires_at)
WHERE expires_at IS NOT NULL;
