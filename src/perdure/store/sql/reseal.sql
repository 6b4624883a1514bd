-- Walking through the encrypted columns of each table, and writing a row again under another key. The
-- rows are locked, and those that others have locked are passed over: a further walk finds them.

-- name: begin_reseal
-- The rules about what never changes do not hold for the same value under another key.
INSERT INTO fact (name, value) VALUES ('resealing', '')  -- sqlite
SELECT set_config('perdure.resealing', 'on', true)  -- postgres

-- name: end_reseal
-- Within the transaction: others never see it.
DELETE FROM fact WHERE name = 'resealing'  -- sqlite
SELECT set_config('perdure.resealing', 'off', true)  -- postgres

-- name: sealed_job
SELECT id, input, plan, result, error, wait, fingerprint FROM job
WHERE id > :after_id
ORDER BY id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_job
UPDATE job SET input = :input, plan = :plan, result = :result, error = :error, wait = :wait, fingerprint = :fingerprint
WHERE id = :id

-- name: sealed_lease
SELECT job_id, progress FROM lease
WHERE job_id > :after_job_id
ORDER BY job_id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_lease
UPDATE lease SET progress = :progress
WHERE job_id = :job_id

-- name: sealed_journal
SELECT job_id, seq, input, output, error, checkpoint FROM journal
WHERE (job_id, seq) > (:after_job_id, :after_seq)
ORDER BY job_id, seq
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_journal
UPDATE journal SET input = :input, output = :output, error = :error, checkpoint = :checkpoint
WHERE job_id = :job_id AND seq = :seq

-- name: sealed_payload
SELECT job_id, digest, data FROM payload
WHERE (job_id, digest) > (:after_job_id, :after_digest)
ORDER BY job_id, digest
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_payload
-- It was inserted again under its other name.
DELETE FROM payload WHERE job_id = :job_id AND digest = :digest

-- name: sealed_event
SELECT no, job_id, data FROM event
WHERE no > :after_no
ORDER BY no
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_event
UPDATE event SET data = :data
WHERE no = :no

-- name: sealed_message
SELECT no, job_id, payload FROM message
WHERE no > :after_no
ORDER BY no
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_message
UPDATE message SET payload = :payload
WHERE no = :no

-- name: sealed_output
SELECT job_id, topic, no, data FROM output
WHERE (job_id, topic, no) > (:after_job_id, :after_topic, :after_no)
ORDER BY job_id, topic, no
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_output
UPDATE output SET data = :data
WHERE job_id = :job_id AND topic = :topic AND no = :no

-- name: sealed_schedule
SELECT tenant, name, job FROM schedule
WHERE (tenant, name) > (:after_tenant, :after_name)
ORDER BY tenant, name
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_schedule
UPDATE schedule SET job = :job
WHERE tenant = :tenant AND name = :name

-- name: sealed_effect
SELECT job_id, no, target, details, result, problem, error, undo FROM effect
WHERE (job_id, no) > (:after_job_id, :after_no)
ORDER BY job_id, no
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_effect
UPDATE effect SET target = :target, details = :details, result = :result, problem = :problem, error = :error, undo = :undo
WHERE job_id = :job_id AND no = :no

-- name: sealed_approval
SELECT id, data FROM approval
WHERE id > :after_id
ORDER BY id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_approval
UPDATE approval SET data = :data
WHERE id = :id

-- name: sealed_notice
SELECT id, data FROM notice
WHERE id > :after_id
ORDER BY id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_notice
UPDATE notice SET data = :data
WHERE id = :id

-- name: sealed_worker_command
SELECT id, data, answer FROM worker_command
WHERE id > :after_id
ORDER BY id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_worker_command
UPDATE worker_command SET data = :data, answer = :answer
WHERE id = :id

-- name: sealed_answer
SELECT tenant, principal, key, digest, done, body FROM answer
WHERE (tenant, principal, key) > (:after_tenant, :after_principal, :after_key)
ORDER BY tenant, principal, key
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_answer
UPDATE answer SET digest = :digest, done = :done, body = :body
WHERE tenant = :tenant AND principal = :principal AND key = :key

-- name: sealed_langgraph_checkpoint
SELECT tenant, thread, ns, id, metadata, data
FROM langgraph_checkpoint
WHERE (tenant, thread, ns, id)
  > (:after_tenant, :after_thread, :after_ns, :after_id)
ORDER BY tenant, thread, ns, id
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_langgraph_checkpoint
UPDATE langgraph_checkpoint SET metadata = :metadata, data = :data
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND id = :id

-- name: sealed_langgraph_value
SELECT tenant, thread, ns, channel, version, data, pieces
FROM langgraph_value
WHERE (tenant, thread, ns, channel, version)
  > (:after_tenant, :after_thread, :after_ns, :after_channel, :after_version)
ORDER BY tenant, thread, ns, channel, version
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_langgraph_value
UPDATE langgraph_value SET data = :data, pieces = :pieces
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND channel = :channel AND version = :version

-- name: sealed_langgraph_piece
SELECT tenant, thread, digest, data
FROM langgraph_piece
WHERE (tenant, thread, digest)
  > (:after_tenant, :after_thread, :after_digest)
ORDER BY tenant, thread, digest
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_langgraph_piece
-- It was inserted again under its other name.
DELETE FROM langgraph_piece
WHERE tenant = :tenant AND thread = :thread AND digest = :digest

-- name: sealed_langgraph_write
SELECT tenant, thread, ns, checkpoint, task, idx, data
FROM langgraph_write
WHERE (tenant, thread, ns, checkpoint, task, idx)
  > (:after_tenant, :after_thread, :after_ns, :after_checkpoint, :after_task, :after_idx)
ORDER BY tenant, thread, ns, checkpoint, task, idx
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres if locked

-- name: reseal_langgraph_write
UPDATE langgraph_write SET data = :data
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND checkpoint = :checkpoint AND task = :task AND idx = :idx
