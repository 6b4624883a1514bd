-- Jobs and all that belongs to them. Times are UNIX seconds, payloads are JSON text:
-- not jsonb, which would give back other text than it was given.

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;

CREATE FUNCTION pass_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END $$;

CREATE TABLE job (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant      text COLLATE "C" NOT NULL,
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
  options     text   NOT NULL,
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
  epoch       bigint NOT NULL DEFAULT 0,     -- of its last lease, once it has ended
  CHECK ((ended_at IS NOT NULL) = (state IN ('COMPLETED', 'FAILED', 'COMPENSATED', 'CANCELLED')))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX job_key ON job (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX job_newest ON job (created_at, id);
CREATE INDEX job_tenant ON job (tenant, created_at, id);
CREATE INDEX job_state ON job (state, created_at, id);
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_budget ON job (budget_of) WHERE budget_of IS NOT NULL;
CREATE INDEX job_ended ON job (ended_at) WHERE ended_at IS NOT NULL;

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
  priority bigint NOT NULL,
  tag      bigint NOT NULL,                  -- its turn among the tenants of the queue
  ready    bigint NOT NULL CHECK (ready IN (0, 1)),    -- 1: may be claimed now
  due_at   float8,                           -- becomes ready then; NULL: only news wakes it
  wakes    bigint NOT NULL CHECK (wakes IN (0, 1)),    -- 1: news makes it ready while nobody owns it
  owner    text COLLATE "C",
  epoch    bigint NOT NULL,                  -- the number of the claim; only grows
  until    float8 NOT NULL,
  claims   bigint NOT NULL,                  -- in a row that ended without progress
  news     bigint NOT NULL,                  -- how often it was told something from outside
  CHECK (owner IS NULL OR (ready = 0 AND due_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX lease_ready ON lease (queue, priority DESC, tag, tenant) WHERE ready = 1;
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
  wake_at       float8,
  started_at    float8,
  ended_at      float8,
  key           text COLLATE "C",           -- by which other jobs of the tenant find what a step gave
  PRIMARY KEY (job_id, seq)
) WITH (fillfactor = 90);

CREATE INDEX journal_key ON journal (key) WHERE key IS NOT NULL;

CREATE FUNCTION refuse_place() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'entry % of job % is %: % cannot take its place', OLD.seq, OLD.job_id, OLD.id, NEW.id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_place';
END $$;

-- The identity of an entry never changes: whoever would put another one in its place is refused.
-- Triggers fire in the order of their names.
CREATE TRIGGER journal_0_place BEFORE UPDATE OF id ON journal FOR EACH ROW
WHEN (NEW.id <> OLD.id)
EXECUTE FUNCTION refuse_place();

-- What comes late is passed over: a start that is written after the result, an older checkpoint.
CREATE TRIGGER journal_1_stale BEFORE UPDATE ON journal FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state IN (
    'SUCCEEDED>PENDING', 'SUCCEEDED>RUNNING', 'SKIPPED>RUNNING', 'COMPENSATED>RUNNING',
    'COMPENSATING>RUNNING', 'COMPENSATION_FAILED>RUNNING')
  OR (OLD.state = 'SUCCEEDED' AND NEW.state = 'SUCCEEDED' AND NEW.output IS NOT DISTINCT FROM OLD.output)
  OR NEW.checkpoint_no < OLD.checkpoint_no)
EXECUTE FUNCTION pass_over();

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
  AND NEW.output IS DISTINCT FROM OLD.output)
EXECUTE FUNCTION refuse('the result of a journal entry never changes');

-- What happened to a job, for people: nothing here is ever changed.
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
    RAISE EXCEPTION 'the event log is append-only: it goes only with its job'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;

CREATE TRIGGER event_kept BEFORE UPDATE ON event FOR EACH ROW
EXECUTE FUNCTION refuse('the event log is append-only');

CREATE TRIGGER event_outlives BEFORE DELETE ON event FOR EACH ROW
EXECUTE FUNCTION event_goes_with_its_job();

CREATE TRIGGER event_whole BEFORE TRUNCATE ON event FOR EACH STATEMENT
EXECUTE FUNCTION refuse('the event log is append-only');

-- Messages to jobs. Those received are kept, so that a key is known when it comes again.
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

CREATE TABLE schedule (
  tenant   text COLLATE "C" NOT NULL,
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
  beat  float8 NOT NULL
) WITH (fillfactor = 50);

-- Whose turn it is: the last tag given to each tenant of a queue.
CREATE TABLE turn (
  queue  text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  tag    bigint NOT NULL,
  PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 50);

-- Facts about this store: the fingerprint key.
CREATE TABLE fact (
  name  text COLLATE "C" NOT NULL PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE queue (
  name      text COLLATE "C" NOT NULL PRIMARY KEY,
  tag       bigint NOT NULL,                 -- of the job last claimed
  tokens    float8,                          -- how many claims its rate has left …
  tokens_at float8                           -- … at this time
) WITH (fillfactor = 50);

-- The number of the last transaction of each connection that writes. When the answer to a commit
-- is lost, this tells whether it happened: nobody has to guess.
CREATE TABLE op (
  lane   text COLLATE "C" NOT NULL PRIMARY KEY,
  no     bigint NOT NULL,
  at     float8 NOT NULL,
  closed bigint NOT NULL DEFAULT 0           -- what has not happened up to this number never will
) WITH (fillfactor = 20);

CREATE TRIGGER op_closed BEFORE UPDATE OF no ON op FOR EACH ROW
WHEN (NEW.no <= OLD.closed OR NEW.no <= OLD.no)
EXECUTE FUNCTION refuse('this transaction came too late: another one was made in its place');
