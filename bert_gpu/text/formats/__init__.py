"""Files in, the texts in them out: names, compression, containers, encodings."""
