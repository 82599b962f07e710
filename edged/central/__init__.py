"""The centre: the collector that lands pages, and the Spark side that reads and aggregates them."""
