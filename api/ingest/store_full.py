"""What a request is told while the store is full."""

STORE_DO = "GET /v1/store and /v1/uplink tell what it waits for"
RETRY_FULL_S = 10
