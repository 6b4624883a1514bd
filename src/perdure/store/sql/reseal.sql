-- Writing rows again under another key. The statements that read and write the rows are made from the
-- declarations of the tables, in `sealing.py`.

-- name: begin_reseal
-- The rules about what never changes do not hold for the same value under another key.
INSERT INTO fact (name, value) VALUES ('resealing', '')  -- sqlite
SELECT set_config('perdure.resealing', 'on', true)  -- postgres

-- name: end_reseal
-- Within the transaction: others never see it.
DELETE FROM fact WHERE name = 'resealing'  -- sqlite
SELECT set_config('perdure.resealing', 'off', true)  -- postgres
