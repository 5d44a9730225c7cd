"""Reading of data: images, sentences and graphs, each from the files a user has."""
