-- name: take_turns
INSERT INTO turn (queue, tenant, tag)
VALUES (:queue, :tenant, coalesce((SELECT tag FROM queue WHERE name = :queue), 0) + :number)
ON CONFLICT (queue, tenant) DO UPDATE SET tag = :number
  + max(turn.tag, excluded.tag - :number)  -- sqlite
  + greatest(turn.tag, excluded.tag - :number)  -- postgres
RETURNING tag

-- name: set_served
INSERT INTO queue (name, tag) VALUES (:queue, :tag)
ON CONFLICT (name) DO UPDATE SET tag = excluded.tag WHERE queue.tag < excluded.tag

-- name: served
SELECT tag FROM queue WHERE name = :queue

-- name: tokens
SELECT tokens, tokens_at FROM queue WHERE name = :queue

-- name: set_tokens
INSERT INTO queue (name, tag, tokens, tokens_at) VALUES (:queue, 0, :tokens, :at)
ON CONFLICT (name) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at
