"""TF-IDF with logistic regression, which classifies texts without a BERT: words and pairs of words,
with logarithms of their counts (scikit-learn).
"""

import csv

from .text_tasks import SPLITS

LABEL, ID = "label", "id"


def read_task(path):
    """Return the texts of a file of a task, a list for each of its columns, and the labels."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = [name for name in rows[0] if name not in (LABEL, ID)]
    return [[row[name] for row in rows] for name in columns], [row[LABEL] for row in rows]


def features_of(vectorizer, texts):
    """Return the features of texts, (N, V); of pairs those of both texts, the sizes of their
    differences and their products, (N, 4 V).
    """
    import scipy.sparse

    features, *others = (vectorizer.transform(column) for column in texts)
    for other in others:
        parts = [features, other, abs(features - other), features.multiply(other)]
        features = scipy.sparse.hstack(parts).tocsr()
    return features


def accuracies(training_file, folder, inverse_penalty):
    """Fit on the examples of a file. Return {split: accuracy} of the dev and the test file in a
    folder. inverse_penalty: C, 1 / strength of the L2 penalty.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    texts, labels = read_task(training_file)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    vectorizer.fit([text for column in texts for text in column])
    model = LogisticRegression(C=inverse_penalty, max_iter=1000)
    model.fit(features_of(vectorizer, texts), labels)
    result = {}
    for split in list(SPLITS)[1:]:
        texts, labels = read_task(folder / f"{split}.tsv")
        result[split] = float(model.score(features_of(vectorizer, texts), labels))
    return result
