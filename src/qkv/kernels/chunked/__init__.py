"""The chunked kernel: attention over keys and values in several arrays, as a key-value cache holds them."""
