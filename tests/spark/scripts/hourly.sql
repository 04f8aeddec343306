-- Hourly delays; run with --param input=… --param output=…
SET spark.sql.session.timeZone = UTC;

CREATE TEMPORARY VIEW flights (ts timestamp, origin string, delay double)
USING csv OPTIONS (path '${input}', header 'true', maxFilesPerTrigger '1');

/* Who was late; a semicolon here; ends nothing */
CREATE TEMPORARY VIEW late AS SELECT * FROM flights WHERE delay > 0;

CREATE FLOW hourly AS INSERT INTO parquet.`${output}/hourly` BY NAME
SELECT window.start AS hour, origin, count(*) AS flights, sum(delay) AS delay
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 1 HOUR
GROUP BY window(ts, '1 hour'), origin;

INSERT INTO csv.`${output}/late` WITH (header 'true') PARTITION (origin)
SELECT ts, delay, origin FROM STREAM late;
