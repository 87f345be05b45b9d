"""What a method of keeping the cache costs in quality, beside the bytes that it saves."""
