"""The one page of HTML that atlctl makes: plain data in, a text that stands alone out."""
