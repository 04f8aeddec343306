-- What Nexmark's queries give, for DuckDB; the variable `events` is the folder of the events.

CREATE VIEW person AS FROM read_csv(
    getvariable('events') || '/person/*.csv',
    columns = {id: 'BIGINT', name: 'VARCHAR', emailAddress: 'VARCHAR', creditCard: 'VARCHAR',
               city: 'VARCHAR', state: 'VARCHAR', dateTime: 'TIMESTAMP', extra: 'VARCHAR'},
    header = false, quote = '', escape = '');

CREATE VIEW auction AS FROM read_csv(
    getvariable('events') || '/auction/*.csv',
    columns = {id: 'BIGINT', itemName: 'VARCHAR', description: 'VARCHAR', initialBid: 'BIGINT',
               reserve: 'BIGINT', dateTime: 'TIMESTAMP', expires: 'TIMESTAMP', seller: 'BIGINT',
               category: 'BIGINT', extra: 'VARCHAR'},
    header = false, quote = '', escape = '');

CREATE VIEW bid AS FROM read_csv(
    getvariable('events') || '/bid/*.csv',
    columns = {auction: 'BIGINT', bidder: 'BIGINT', price: 'BIGINT', channel: 'VARCHAR',
               url: 'VARCHAR', dateTime: 'TIMESTAMP', extra: 'VARCHAR'},
    header = false, quote = '', escape = '');

CREATE VIEW side_input AS FROM read_csv(
    getvariable('events') || '/side_input/*.csv',
    columns = {key: 'BIGINT', value: 'VARCHAR'}, header = false);

CREATE VIEW winner AS
SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bidTime, b.extra AS bidExtra
FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) = 1;

CREATE VIEW ranked AS
SELECT *, strftime(dateTime, '%Y-%m-%d') AS day, strftime(dateTime, '%H:%M') AS minute,
    CASE WHEN price < 10000 THEN 1 WHEN price < 1000000 THEN 2 ELSE 3 END AS rank
FROM bid;

CREATE VIEW q0 AS SELECT auction, bidder, price, dateTime, extra FROM bid;

CREATE VIEW q1 AS
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), dateTime, extra FROM bid;

CREATE VIEW q2 AS SELECT auction, price FROM bid WHERE auction % 123 = 0;

CREATE VIEW q3 AS
SELECT name, city, state, a.id FROM auction a JOIN person p ON a.seller = p.id
WHERE category = 10 AND state IN ('OR', 'ID', 'CA');

CREATE VIEW q4 AS SELECT category, sum(price) // count(*) FROM winner GROUP BY category;

CREATE VIEW q5 AS
WITH placed AS (
    SELECT auction, unnest([time_bucket(INTERVAL 2 SECOND, dateTime) - n * INTERVAL 2 SECOND
                            for n in range(5)]) AS begins FROM bid
), counted AS (SELECT auction, begins, count(*) AS num FROM placed GROUP BY ALL)
SELECT auction, num FROM counted QUALIFY num = max(num) OVER (PARTITION BY begins);

CREATE VIEW q6 AS
SELECT seller, sum(price) OVER recent // count(*) OVER recent FROM winner
WINDOW recent AS (PARTITION BY seller ORDER BY bidTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW);

CREATE VIEW q7 AS
WITH highest AS (
    SELECT max(price) AS price, time_bucket(INTERVAL 10 SECOND, dateTime) AS begins
    FROM bid GROUP BY begins
)
SELECT auction, b.price, bidder, dateTime, extra FROM bid b JOIN highest h ON b.price = h.price
WHERE dateTime BETWEEN begins AND begins + INTERVAL 10 SECOND;

CREATE VIEW q8 AS
WITH came AS (SELECT id, name, time_bucket(INTERVAL 10 SECOND, dateTime) AS begins FROM person),
sold AS (SELECT DISTINCT seller, time_bucket(INTERVAL 10 SECOND, dateTime) AS begins FROM auction)
SELECT id, name, begins FROM came JOIN sold USING (begins) WHERE id = seller;

CREATE VIEW q9 AS FROM winner;

CREATE VIEW q10 AS
SELECT auction, bidder, price, dateTime, extra, day AS dt, replace(minute, ':', '-') AS hm
FROM ranked;

CREATE VIEW q11 AS
WITH marked AS (
    SELECT bidder, dateTime, coalesce(dateTime > lag(dateTime) OVER past + INTERVAL 10 SECOND, true)
        AS begins
    FROM bid WINDOW past AS (PARTITION BY bidder ORDER BY dateTime)
), numbered AS (
    SELECT *, sum(begins::INT) OVER (PARTITION BY bidder ORDER BY dateTime) AS number FROM marked
)
SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL 10 SECOND
FROM numbered GROUP BY bidder, number;

CREATE VIEW q13 AS
SELECT auction, bidder, price, dateTime, value FROM bid JOIN side_input ON auction % 10000 = key;

CREATE VIEW q14 AS
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)),
    CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
         WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END,
    dateTime, extra, length(extra) - length(replace(extra, 'c', ''))
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

CREATE MACRO bids(rank, wanted) AS count(*) FILTER (rank = wanted);
CREATE MACRO distinct_in(id, rank, wanted) AS count(DISTINCT id) FILTER (rank = wanted);

CREATE VIEW q15 AS
SELECT day, count(*), bids(rank, 1), bids(rank, 2), bids(rank, 3),
    count(DISTINCT bidder), distinct_in(bidder, rank, 1), distinct_in(bidder, rank, 2),
    distinct_in(bidder, rank, 3), count(DISTINCT auction), distinct_in(auction, rank, 1),
    distinct_in(auction, rank, 2), distinct_in(auction, rank, 3)
FROM ranked GROUP BY day;

CREATE VIEW q16 AS
SELECT channel, day, max(minute), count(*), bids(rank, 1), bids(rank, 2), bids(rank, 3),
    count(DISTINCT bidder), distinct_in(bidder, rank, 1), distinct_in(bidder, rank, 2),
    distinct_in(bidder, rank, 3), count(DISTINCT auction), distinct_in(auction, rank, 1),
    distinct_in(auction, rank, 2), distinct_in(auction, rank, 3)
FROM ranked GROUP BY channel, day;

CREATE VIEW q17 AS
SELECT auction, day, count(*), bids(rank, 1), bids(rank, 2), bids(rank, 3), min(price), max(price),
    sum(price) // count(*), sum(price)
FROM ranked GROUP BY auction, day;

CREATE VIEW q18 AS
SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1;
