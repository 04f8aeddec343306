-- Nexmark's queries for Flink, as nexmark/nexmark has them; ${input} and ${sink} are replaced.
-- What differs, and why:
--   the tables are files, not one generator of three kinds of events;
--   q13: the table of the side input has no lookup in Flink's connector for files;
--   q14: characters are counted by Flink's own functions, not by one in Java.

-- tables
CREATE TABLE person (
    id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR, city VARCHAR, state VARCHAR,
    `dateTime` TIMESTAMP(3), extra VARCHAR,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH ('connector' = 'filesystem', 'path' = '${input}/person', 'format' = 'csv',
        'csv.disable-quote-character' = 'true');
CREATE TABLE auction (
    id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT,
    `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra VARCHAR,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH ('connector' = 'filesystem', 'path' = '${input}/auction', 'format' = 'csv',
        'csv.disable-quote-character' = 'true');
CREATE TABLE bid (
    auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    `dateTime` TIMESTAMP(3), extra VARCHAR,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH ('connector' = 'filesystem', 'path' = '${input}/bid', 'format' = 'csv',
        'csv.disable-quote-character' = 'true');
CREATE TABLE side_input (key BIGINT, `value` VARCHAR)
WITH ('connector' = 'filesystem', 'path' = '${input}/side_input', 'format' = 'csv');

-- q0
CREATE TABLE q0 (auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3), extra VARCHAR)
WITH (${sink});
INSERT INTO q0 SELECT auction, bidder, price, `dateTime`, extra FROM bid;

-- q1
CREATE TABLE q1 (
    auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), `dateTime` TIMESTAMP(3), extra VARCHAR
) WITH (${sink});
INSERT INTO q1 SELECT auction, bidder, 0.908 * price, `dateTime`, extra FROM bid;

-- q2
CREATE TABLE q2 (auction BIGINT, price BIGINT) WITH (${sink});
INSERT INTO q2 SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0;

-- q3
CREATE TABLE q3 (name VARCHAR, city VARCHAR, state VARCHAR, id BIGINT) WITH (${sink});
INSERT INTO q3
SELECT P.name, P.city, P.state, A.id
FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA');

-- q4
CREATE TABLE q4 (id BIGINT, final BIGINT) WITH (${sink});
INSERT INTO q4
SELECT Q.category, AVG(Q.final)
FROM (
    SELECT MAX(B.price) AS final, A.category
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
    GROUP BY A.id, A.category
) Q
GROUP BY Q.category;

-- q5
CREATE TABLE q5 (auction BIGINT, num BIGINT) WITH (${sink});
INSERT INTO q5
SELECT AuctionBids.auction, AuctionBids.num
FROM (
    SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
) AS AuctionBids
JOIN (
    SELECT MAX(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
    FROM (
        SELECT COUNT(*) AS num, window_start AS starttime, window_end AS endtime
        FROM TABLE(
            HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    ) AS CountBids
    GROUP BY CountBids.starttime, CountBids.endtime
) AS MaxBids
ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
    AND AuctionBids.num >= MaxBids.maxn;

-- q6
CREATE TABLE q6 (seller BIGINT, average BIGINT) WITH (${sink});
INSERT INTO q6
SELECT Q.seller, AVG(Q.price) OVER (
    PARTITION BY Q.seller ORDER BY Q.`dateTime` ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY id, seller ORDER BY price DESC, `dateTime` ASC) AS rownum
    FROM (
        SELECT A.id, A.seller, B.price, B.`dateTime` FROM auction AS A, bid AS B
        WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires)
) AS Q
WHERE rownum <= 1;

-- q7
CREATE TABLE q7 (auction BIGINT, price BIGINT, bidder BIGINT, `dateTime` TIMESTAMP(3), extra VARCHAR)
WITH (${sink});
INSERT INTO q7
SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bid B
JOIN (
    SELECT MAX(price) AS maxprice, window_end AS `dateTime`
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) B1
ON B.price = B1.maxprice
WHERE B.`dateTime` BETWEEN B1.`dateTime` - INTERVAL '10' SECOND AND B1.`dateTime`;

-- q8
CREATE TABLE q8 (id BIGINT, name VARCHAR, stime TIMESTAMP(3)) WITH (${sink});
INSERT INTO q8
SELECT P.id, P.name, P.starttime
FROM (
    SELECT id, name, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) P
JOIN (
    SELECT seller, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime;

-- q9
CREATE TABLE q9 (
    id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT,
    `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra VARCHAR,
    auction BIGINT, bidder BIGINT, price BIGINT, bid_dateTime TIMESTAMP(3), bid_extra VARCHAR
) WITH (${sink});
INSERT INTO q9
SELECT id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category, extra,
    auction, bidder, price, bid_dateTime, bid_extra
FROM (
    SELECT A.*, B.auction, B.bidder, B.price, B.`dateTime` AS bid_dateTime, B.extra AS bid_extra,
        ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS rownum
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
)
WHERE rownum <= 1;

-- q10
CREATE TABLE q10 (
    auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3), extra VARCHAR,
    dt STRING, hm STRING
) PARTITIONED BY (dt, hm) WITH (
    ${sink},
    'sink.partition-commit.trigger' = 'partition-time',
    'sink.partition-commit.delay' = '1 min',
    'sink.partition-commit.policy.kind' = 'success-file',
    'partition.time-extractor.timestamp-pattern' = '$dt $hm:00',
    'partition.time-extractor.timestamp-formatter' = 'yyyy-MM-dd HH-mm:ss',
    'sink.rolling-policy.rollover-interval' = '1min',
    'sink.rolling-policy.check-interval' = '1min'
);
INSERT INTO q10
SELECT auction, bidder, price, `dateTime`, extra,
    DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), DATE_FORMAT(`dateTime`, 'HH-mm')
FROM bid;

-- q11
CREATE TABLE q11 (
    bidder BIGINT, bid_count BIGINT, starttime TIMESTAMP(3), endtime TIMESTAMP(3)
) WITH (${sink});
INSERT INTO q11
SELECT B.bidder, COUNT(*), SESSION_START(B.`dateTime`, INTERVAL '10' SECOND),
    SESSION_END(B.`dateTime`, INTERVAL '10' SECOND)
FROM bid B
GROUP BY B.bidder, SESSION(B.`dateTime`, INTERVAL '10' SECOND);

-- q13
CREATE TABLE q13 (
    auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3), `value` VARCHAR
) WITH (${sink});
INSERT INTO q13
SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
FROM bid B JOIN side_input S ON MOD(B.auction, 10000) = S.key;

-- q14
CREATE TABLE q14 (
    auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bidTimeType VARCHAR,
    `dateTime` TIMESTAMP(3), extra VARCHAR, c_counts BIGINT
) WITH (${sink});
INSERT INTO q14
SELECT auction, bidder, 0.908 * price,
    CASE
        WHEN HOUR(`dateTime`) >= 8 AND HOUR(`dateTime`) <= 18 THEN 'dayTime'
        WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END,
    `dateTime`, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', ''))
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q15
CREATE TABLE q15 (
    `day` VARCHAR,
    total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders BIGINT,
    total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT
) WITH (${sink});
INSERT INTO q15
SELECT DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
    COUNT(*),
    COUNT(*) FILTER (WHERE price < 10000),
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(*) FILTER (WHERE price >= 1000000),
    COUNT(DISTINCT bidder),
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000),
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000),
    COUNT(DISTINCT auction),
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000),
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000)
FROM bid
GROUP BY DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q16
CREATE TABLE q16 (
    channel VARCHAR, `day` VARCHAR, `minute` VARCHAR,
    total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders BIGINT,
    total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT
) WITH (${sink});
INSERT INTO q16
SELECT channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
    MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`,
    COUNT(*),
    COUNT(*) FILTER (WHERE price < 10000),
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(*) FILTER (WHERE price >= 1000000),
    COUNT(DISTINCT bidder),
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000),
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000),
    COUNT(DISTINCT auction),
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000),
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000)
FROM bid
GROUP BY channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q17
CREATE TABLE q17 (
    auction BIGINT, `day` VARCHAR,
    total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    min_price BIGINT, max_price BIGINT, avg_price BIGINT, sum_price BIGINT
) WITH (${sink});
INSERT INTO q17
SELECT auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
    COUNT(*),
    COUNT(*) FILTER (WHERE price < 10000),
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000),
    COUNT(*) FILTER (WHERE price >= 1000000),
    MIN(price), MAX(price), AVG(price), SUM(price)
FROM bid
GROUP BY auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q18
CREATE TABLE q18 (
    auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    `dateTime` TIMESTAMP(3), extra VARCHAR
) WITH (${sink});
INSERT INTO q18
SELECT auction, bidder, price, channel, url, `dateTime`, extra
FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS rank_number
    FROM bid)
WHERE rank_number <= 1;
