-- What must always be true of the tables. Each statement returns what breaks one rule: the job, and
-- what is wrong. It is a single statement, so that it sees one moment of a store that is in use.

-- part: settled_effect
-- It was made before `continue_as`: its part of the journal is gone, and it is not undone any more.
-- What is done since then has the number of the part in front of its identity.
EXISTS (
  SELECT 1 FROM journal AS begun
  WHERE begun.job_id = effect.job_id AND begun.kind = 'value' AND begun.name = 'continued'
    AND effect.step NOT LIKE 'undo:%'
    AND effect.step NOT LIKE '/' || substr(begun.id, instr(begun.id, '#') + 1) || '/%')  -- sqlite
    AND effect.step NOT LIKE '/' || split_part(begun.id, '#', 2) || '/%')  -- postgres

-- part: settled_child
-- Likewise a child that was submitted before.
EXISTS (
  SELECT 1 FROM journal AS begun
  WHERE begun.job_id = child.parent AND begun.kind = 'value' AND begun.name = 'continued'
    AND begun.seq > child.parent_seq)

-- name: open_effects_of_ended
SELECT job.id, 'effect ' || effect.no || ' (' || effect.kind || ') is INTENT and the job is ' || job.state
FROM effect JOIN job ON job.id = effect.job_id
WHERE effect.state = 'INTENT' AND job.ended_at IS NOT NULL
LIMIT :limit

-- name: open_questions_of_ended
SELECT job.id, 'approval ' || approval.id || ' (' || approval.step || ') is PENDING and the job is ' || job.state
FROM approval JOIN job ON job.id = approval.job_id
WHERE approval.state = 'PENDING' AND job.ended_at IS NOT NULL
LIMIT :limit

-- name: open_questions_of_ended_steps
SELECT journal.job_id, 'approval ' || approval.id || ' is PENDING and ' || journal.id || ' is ' || journal.state
FROM approval JOIN journal ON journal.job_id = approval.job_id AND journal.id = approval.step
WHERE approval.state = 'PENDING' AND journal.state IN ('SUCCEEDED', 'FAILED', 'SKIPPED')
LIMIT :limit

-- name: open_spendings_of_ended
-- The id of a reservation begins with the id of its job.
SELECT job.id, 'spending ' || held.key || ' of the budget of ' || budget.root_id || ' is open and the job is ' || job.state
FROM budget
CROSS JOIN json_each(budget.data, '$.reserved') AS held  -- sqlite
CROSS JOIN LATERAL json_each(budget.data::json -> 'reserved') AS held  -- postgres
JOIN job ON job.id = substr(held.key, 1, instr(held.key, '/') - 1)  -- sqlite
JOIN job ON job.id = split_part(held.key, '/', 1)  -- postgres
WHERE job.ended_at IS NOT NULL
LIMIT :limit

-- name: leases_of_ended
SELECT job.id, 'the job is ' || job.state || ' and still has a lease'
FROM lease JOIN job ON job.id = lease.job_id
WHERE job.ended_at IS NOT NULL
LIMIT :limit

-- name: live_without_lease
SELECT job.id, 'the job is ' || job.state || ' and has no lease, so no worker will ever take it'
FROM job
WHERE job.ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.job_id = job.id)
LIMIT :limit

-- name: never_due
SELECT job.id, 'the job is ' || job.state || ' and neither due nor waiting for anything that it names'
FROM job JOIN lease ON lease.job_id = job.id
WHERE lease.owner IS NULL AND lease.ready = 0 AND lease.due_at IS NULL
  AND (job.state IN ('PENDING', 'RUNNING')
       OR (job.state IN ('WAITING', 'COMPENSATING')
           AND (lease.wakes = 0 OR job.wait IS NULL OR job.wait = '[]')))
UNION ALL
SELECT job.id, 'the job needs attention and does not say for what'
FROM job
WHERE job.state = 'NEEDS_ATTENTION' AND (job.error IS NULL OR job.error IN ('null', '{}', '""'))
UNION ALL
SELECT job.id, 'the job is ' || job.state || ' and due all the same'
FROM job JOIN lease ON lease.job_id = job.id
WHERE job.state IN ('PAUSED', 'NEEDS_ATTENTION') AND (lease.ready = 1 OR lease.due_at IS NOT NULL)
LIMIT :limit

-- name: lost_wakeups
-- The ends of children are gathered, for a second at most, until as many have ended as are awaited.
SELECT job.id, 'the job waits for job ' || max(child.id) || ', which is ' || max(child.state)
FROM job
JOIN lease ON lease.job_id = job.id
CROSS JOIN json_each(job.wait) AS one  -- sqlite
CROSS JOIN LATERAL jsonb_array_elements(job.wait::jsonb) AS one (value)  -- postgres
JOIN job AS child ON child.id = json_extract(one.value, '$.job')  -- sqlite
JOIN job AS child ON child.id = one.value ->> 'job'  -- postgres
WHERE job.wait IS NOT NULL AND job.state IN ('WAITING', 'COMPENSATING')
  AND lease.owner IS NULL AND lease.ready = 0
GROUP BY job.id, lease.awaits, lease.due_at
HAVING count(child.ended_at) > 0 AND (lease.awaits <= 0 OR count(child.ended_at) = count(*))
  AND (lease.due_at IS NULL OR lease.due_at > max(child.ended_at) + 2)
UNION ALL
SELECT job.id, 'the job waits for approval ' || approval.id || ', which is ' || approval.state
FROM job
JOIN lease ON lease.job_id = job.id
CROSS JOIN json_each(job.wait) AS one  -- sqlite
CROSS JOIN LATERAL jsonb_array_elements(job.wait::jsonb) AS one (value)  -- postgres
JOIN approval ON approval.id = json_extract(one.value, '$.approval')  -- sqlite
JOIN approval ON approval.id = one.value ->> 'approval'  -- postgres
WHERE job.wait IS NOT NULL AND job.state IN ('WAITING', 'COMPENSATING')
  AND lease.owner IS NULL AND lease.ready = 0 AND approval.state <> 'PENDING'
LIMIT :limit

-- name: unfinished_undo
SELECT job.id, entry.id || ' is ' || entry.state || ' and the job is COMPENSATED'
FROM job JOIN journal AS entry ON entry.job_id = job.id
WHERE job.state = 'COMPENSATED'
  AND ((entry.kind = 'undo' AND (entry.state NOT IN ('SUCCEEDED', 'SKIPPED')
                                 OR entry.output LIKE '{"left_undone"%'))
       OR entry.state IN ('COMPENSATING', 'COMPENSATION_FAILED'))
LIMIT :limit

-- name: standing_work
-- What a COMPENSATED job, or a completed child of it, did and has not undone.
WITH RECURSIVE tree (root, id) AS (
  SELECT id, id FROM job WHERE state = 'COMPENSATED'
  UNION
  SELECT tree.root, child.id FROM tree JOIN job AS child ON child.parent = tree.id
  WHERE NOT
  -- use: settled_child
), compensated (name, step) AS (  -- steps that are known to have a compensation
  SELECT DISTINCT job.name, substr(journal.name, 6)
  FROM journal JOIN job ON job.id = journal.job_id
  WHERE journal.kind = 'undo' AND journal.id LIKE 'undo:%' AND journal.id NOT LIKE '%/%'
)
SELECT job.id, 'effect ' || effect.no || ' (' || effect.kind || ') is ' || effect.state
       || ' and not undone, and job ' || tree.root || ' is COMPENSATED'
FROM tree
JOIN job ON job.id = tree.id AND job.state IN ('COMPLETED', 'COMPENSATED')
JOIN effect ON effect.job_id = job.id
WHERE effect.state = 'DONE' AND effect.undo <> 'null' AND effect.step NOT LIKE 'undo:%'
  AND NOT
  -- use: settled_effect
  AND NOT EXISTS (
    SELECT 1 FROM journal
    WHERE journal.job_id = job.id AND journal.id = 'undo:' || effect.step || '/' || effect.no
      AND journal.state IN ('SUCCEEDED', 'SKIPPED'))
UNION ALL
SELECT job.id, entry.id || ' is not undone, and job ' || tree.root || ' is COMPENSATED'
FROM tree
JOIN job ON job.id = tree.id AND job.state = 'COMPLETED'
JOIN journal AS entry
  ON entry.job_id = job.id AND entry.kind = 'step' AND entry.state = 'SUCCEEDED' AND entry.attempt > 0
JOIN compensated ON compensated.name = job.name AND compensated.step = entry.name
WHERE NOT EXISTS (
  SELECT 1 FROM effect
  WHERE effect.job_id = job.id AND effect.step = entry.id AND effect.state = 'BORROWED')
UNION ALL
SELECT job.id, 'the job is ' || job.state || ' and may still do something, and job ' || tree.root || ' is COMPENSATED'
FROM tree JOIN job ON job.id = tree.id
WHERE job.ended_at IS NULL
UNION ALL
SELECT entry.job_id, entry.id || ' is ' || entry.state || ' and child ' || child.id || ' is ' || child.state
FROM journal AS entry
JOIN job AS child ON child.id = json_extract(entry.input, '$.child')  -- sqlite
JOIN job AS child ON child.id = entry.input::json ->> 'child'  -- postgres
WHERE entry.kind = 'undo' AND entry.state = 'SUCCEEDED' AND entry.input IS NOT NULL
  AND child.state NOT IN ('COMPENSATED', 'FAILED')  -- FAILED: something stands that nothing undoes
LIMIT :limit

-- name: late_entries
-- The list of what to undo is made when all work has stopped: what comes later is not in it.
SELECT entry.job_id, entry.id || ' has place ' || entry.seq || ', behind the list of what to undo'
FROM journal AS first
JOIN journal AS entry ON entry.job_id = first.job_id AND entry.seq > first.seq AND entry.kind <> 'undo'
WHERE first.kind = 'undo' AND first.id <> 'undo'
UNION ALL
SELECT job_id, id || ' has place ' || seq FROM journal WHERE seq < 0
LIMIT :limit

-- name: entries_twice
SELECT job_id, id || ' is there ' || count(*) || ' times'
FROM journal
GROUP BY job_id, id
HAVING count(*) > 1
LIMIT :limit

-- name: epochs
SELECT job.id, 'the lease has epoch ' || lease.epoch || ', the job had ' || job.epoch || ' before'
FROM job JOIN lease ON lease.job_id = job.id
WHERE lease.epoch < job.epoch
UNION ALL
SELECT job.id, 'the job is ' || job.state || ' and was never claimed'
FROM job LEFT JOIN lease ON lease.job_id = job.id
WHERE coalesce(lease.epoch, job.epoch) = 0
  AND (job.state IN ('RUNNING', 'COMPLETED', 'COMPENSATED') OR lease.owner IS NOT NULL)
UNION ALL
SELECT job.id, 'the job is PENDING and owned by ' || lease.owner
FROM job JOIN lease ON lease.job_id = job.id
WHERE lease.owner IS NOT NULL AND job.state IN ('PENDING', 'PAUSED', 'NEEDS_ATTENTION')
LIMIT :limit

-- name: tenants
SELECT child.id, 'the job is of tenant ' || child.tenant || ', its parent of ' || job.tenant
FROM job AS child JOIN job ON job.id = child.parent
WHERE child.tenant <> job.tenant
UNION ALL
SELECT job.id, 'the job is of tenant ' || job.tenant || ', its lease of ' || lease.tenant
FROM job JOIN lease ON lease.job_id = job.id
WHERE lease.tenant <> job.tenant
UNION ALL
SELECT job.id, 'the job is of tenant ' || job.tenant || ', its effect ' || effect.no || ' of ' || effect.tenant
FROM job JOIN effect ON effect.job_id = job.id
WHERE effect.tenant <> job.tenant
UNION ALL
SELECT job.id, 'the job is of tenant ' || job.tenant || ', its approval ' || approval.id || ' of ' || approval.tenant
FROM job JOIN approval ON approval.job_id = job.id
WHERE approval.tenant <> job.tenant
LIMIT :limit

-- name: payloads
SELECT entry.job_id, entry.id || ' lacks a part of its ' || entry.what
FROM (SELECT job_id, id, 'arguments' AS what, input AS kept FROM journal WHERE substr(input, 1, 1) = ' '
      UNION ALL
      SELECT job_id, id, 'result', output FROM journal WHERE substr(output, 1, 1) = ' ') AS entry
JOIN json_each(entry.kept, '$.chunks') AS part  -- sqlite
CROSS JOIN LATERAL json_array_elements_text(coalesce(entry.kept::json -> 'chunks', '[]')) AS part (value)  -- postgres
WHERE NOT EXISTS (
  SELECT 1 FROM payload WHERE payload.job_id = entry.job_id AND payload.digest = part.value)
LIMIT :limit

-- name: references
SELECT id, 'its parent ' || parent || ' is not there' FROM job
WHERE parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job AS other WHERE other.id = job.parent)
UNION ALL
SELECT child.id, 'its parent ' || child.parent || ' has no entry ' || child.parent_seq || ' for it'
FROM job AS child JOIN job ON job.id = child.parent
WHERE NOT EXISTS (
  SELECT 1 FROM journal
  WHERE journal.job_id = child.parent AND journal.seq = child.parent_seq AND journal.kind = 'child')
  AND NOT
  -- use: settled_child
UNION ALL
SELECT job_id, 'there is a lease and no job' FROM lease
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = lease.job_id)
UNION ALL
SELECT job_id, 'there is an entry of a journal (' || journal.id || ') and no job' FROM journal
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = journal.job_id)
UNION ALL
SELECT job_id, 'there is a payload and no job' FROM payload
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = payload.job_id)
UNION ALL
SELECT job_id, 'there is effect ' || effect.no || ' and no job' FROM effect
WHERE effect.business IS NULL AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = effect.job_id)
UNION ALL
SELECT job_id, 'there is approval ' || approval.id || ' and no job' FROM approval
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = approval.job_id)
UNION ALL
SELECT job_id, 'there is notice ' || notice.id || ' and no job' FROM notice
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = notice.job_id)
  AND kind <> 'alert.worker_dead'
UNION ALL
SELECT job_id, 'notice ' || notice.id || ' is about approval ' || approval_id || ', which is not there' FROM notice
WHERE approval_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM approval WHERE approval.id = notice.approval_id)
UNION ALL
SELECT job_id, 'there is message ' || message.no || ' and no job' FROM message
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = message.job_id)
UNION ALL
SELECT job_id, 'there is a label (' || label.name || ') and no job' FROM label
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = label.job_id)
UNION ALL
SELECT job_id, 'there is output (' || output.topic || ' ' || output.no || ') and no job' FROM output
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = output.job_id)
UNION ALL
SELECT job_id, 'output ' || output.topic || ' ' || output.no || ' is not within its topic' FROM output
WHERE NOT EXISTS (
  SELECT 1 FROM output_topic
  WHERE output_topic.job_id = output.job_id AND output_topic.topic = output.topic
    AND output_topic.last >= output.no AND output_topic.dropped < output.no)
UNION ALL
SELECT job_id, 'there is topic ' || topic || ' and no job' FROM output_topic
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = output_topic.job_id)
UNION ALL
SELECT root_id, 'there is a budget and no job' FROM budget
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = budget.root_id)
  AND NOT EXISTS (SELECT 1 FROM job WHERE job.budget_of = budget.root_id)
UNION ALL
SELECT effect.job_id, 'effect ' || effect.no || ' is of ' || effect.step || ', which the journal does not know'
FROM effect
WHERE EXISTS (SELECT 1 FROM job WHERE job.id = effect.job_id)
  AND NOT EXISTS (SELECT 1 FROM journal WHERE journal.job_id = effect.job_id AND journal.id = effect.step)
  AND NOT
  -- use: settled_effect
LIMIT :limit

-- name: done_twice
SELECT job_id, 'the effect ' || max(kind) || ' of ' || step || ' is DONE ' || count(*) || ' times'
FROM effect
WHERE state = 'DONE'
GROUP BY job_id, step, part, ordinal
HAVING count(*) > 1
UNION ALL
SELECT max(job_id), 'the effect ' || max(kind) || ' of one business key is DONE ' || count(*) || ' times'
FROM effect
WHERE state = 'DONE' AND business IS NOT NULL
GROUP BY tenant, business
HAVING count(*) > 1
LIMIT :limit

-- name: some_approvals
SELECT id, action_hash, state, data FROM approval WHERE id > :after ORDER BY id LIMIT :limit

-- name: sealed_entries
-- What the rules above cannot see, as it is stored; and large payloads, whose parts may be encrypted.
SELECT job_id, seq, id, kind, state, input, output, (SELECT state FROM job WHERE job.id = job_id)
FROM journal
WHERE (job_id, seq) > (:job, :seq)
  AND (substr(input, 1, 2) = char(9) || '"' OR substr(output, 1, 2) = char(9) || '"'  -- sqlite
  AND (left(input, 2) = chr(9) || '"' OR left(output, 2) = chr(9) || '"'  -- postgres
       OR substr(input, 1, 1) = ' ' OR substr(output, 1, 1) = ' ')
ORDER BY job_id, seq
LIMIT :limit
