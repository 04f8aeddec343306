"""Storage: job directories on HDFS, by WebHDFS."""
