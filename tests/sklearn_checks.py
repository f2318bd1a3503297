"""scikit-learn's checks of estimators.

scikit-learn 1.6 imports them only if `SCIPY_ARRAY_API` is set, where SciPy is 1.14 or newer and an array library is
installed. SciPy reads the variable when it is imported, and the tests shall run with the SciPy that users have.
"""

import pytest
import scipy.special  # noqa: F401  # before the variable is set

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("SCIPY_ARRAY_API", "1")
    from sklearn.utils.estimator_checks import parametrize_with_checks

__all__ = ["parametrize_with_checks"]
